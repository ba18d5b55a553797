"""A release of vLLM on the user's package index. Importing this package without its extra is a `Failure`."""

from vpatch.errors import Failure, Problem
from vpatch.installation import how_to_add

try:
    import pypi_simple  # noqa: F401
    import requests  # noqa: F401
except ModuleNotFoundError as error:
    raise Failure(Problem("cannot fetch", str(error.name), f"not installed: {how_to_add('fetch')}")) from error
