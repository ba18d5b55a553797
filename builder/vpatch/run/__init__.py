"""Run a command with overlays, without a write to vLLM's files.

A *farm* is a folder that stands first on PYTHONPATH. Its `vllm` has the files that overlays change or add, and links to
everything else of the installed vLLM. So Python's own import finds it, in every process that inherits the environment.
"""
