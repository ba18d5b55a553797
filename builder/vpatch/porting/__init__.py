"""Turn patches that people carry, such as line diffs, into overlays: reads them, and what they change in vLLM."""
