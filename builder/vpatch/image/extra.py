"""What to say where the extra `vpatch[image]`, or a part of it, is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vpatch.errors import Failure, Problem


@contextmanager
def importing() -> Iterator[None]:
    """Turn a failing import into the failure that says what to install.

    Raises:
        Failure: the block imported what is not there.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        cause = "not installed: pip install 'vpatch[image]'"
        raise Failure(Problem("cannot work on images", str(error.name), cause)) from error
