"""Modules that overlays add to vLLM as `vllm/_vpatch/<name>.py`. They run inside vLLM only."""
