"""A vLLM on disk: where it is, what it held before, and the one writer that changes it."""
