"""Scripts that an image's own interpreter runs, as `python -c`: they lean on the standard library alone."""
