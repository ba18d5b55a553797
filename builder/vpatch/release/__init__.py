"""A release of vLLM on the user's package index. Importing this package without its extra is a `Failure`."""

from vpatch.installation import needing

with needing("fetch", "cannot fetch"):
    import pypi_simple  # noqa: F401
    import requests  # noqa: F401
