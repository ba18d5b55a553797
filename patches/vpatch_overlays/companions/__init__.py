"""What overlays add to vLLM as `vllm/_vpatch/<name>.py`: real modules, and yet of use only where vLLM is."""
