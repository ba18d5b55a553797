"""Modules that the overlay adds to vLLM."""
