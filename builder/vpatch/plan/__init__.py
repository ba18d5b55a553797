"""What a model on a GPU needs: overlays, memory, concurrency and the command, from its config alone.

No GPU is used, no weight is loaded, no vLLM imported: this is vLLM's own arithmetic, as of a release, done beforehand.
"""
