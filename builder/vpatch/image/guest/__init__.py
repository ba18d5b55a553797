"""Scripts that an image's own interpreter runs as `python -c`: they import the standard library alone."""
