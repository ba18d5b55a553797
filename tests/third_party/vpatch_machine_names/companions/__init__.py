"""The modules that the overlay adds to vLLM."""
