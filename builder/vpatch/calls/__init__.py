"""Record what overlays take from vLLM: `python -m vpatch.calls`, for their authors. Nothing of `apply` imports it."""
