"""The door to images. Where the extra `vpatch[image]` is not installed, importing this module raises the `Failure` that
says so: import it where it is used.
"""

from __future__ import annotations

from vpatch.errors import Failure, Problem

try:
    from vpatch.image.build import Built, Order
    from vpatch.image.definition import Definition, everything, read
    from vpatch.image.engine.build import build as build_in_engine
    from vpatch.image.engine.build import tested
    from vpatch.image.inspect import look
    from vpatch.image.registry.build import build as build_in_registry
    from vpatch.image.registry.push import tag
    from vpatch.image.registry.reference import parse
except ModuleNotFoundError as error:
    raise Failure(
        Problem("cannot work on images", str(error.name), "not installed: pip install 'vpatch[image]'")
    ) from error

__all__ = [
    "Built",
    "Definition",
    "Order",
    "build_in_engine",
    "build_in_registry",
    "everything",
    "look",
    "parse",
    "read",
    "tag",
    "tested",
]
