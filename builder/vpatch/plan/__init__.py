"""What a model needs on a GPU: overlays, memory, concurrency and the command, computed from its config alone.

It uses no GPU, loads no weights and imports no vLLM: it repeats vLLM's own arithmetic, release by release.
"""

GIB = 1 << 30
MIB = 1 << 20
