"""A vLLM release on the package index: found, read in ranges, checked, and put on disk."""
