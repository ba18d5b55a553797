"""The door to images. A name's module is imported when the name is: each way needs other packages, and all are slow.

Where one is not installed, importing the name raises the `Failure` that says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vpatch.image.definition import everything, read
    from vpatch.image.engine.build import build as build_in_engine
    from vpatch.image.engine.build import tested
    from vpatch.image.inspect import look
    from vpatch.image.order import Order
    from vpatch.image.registry.build import build as build_in_registry
    from vpatch.image.registry.push import tag
    from vpatch.image.registry.reference import parse
else:
    from importlib import import_module

    from vpatch.image.extra import importing

    _PLACES = {
        "Order": "order.Order",
        "build_in_engine": "engine.build.build",
        "build_in_registry": "registry.build.build",
        "everything": "definition.everything",
        "look": "inspect.look",
        "parse": "registry.reference.parse",
        "read": "definition.read",
        "tag": "registry.push.tag",
        "tested": "engine.build.tested",
    }

    def __getattr__(name: str) -> Any:
        if name not in _PLACES:
            raise AttributeError(name)
        module, _, attribute = _PLACES[name].rpartition(".")
        with importing():
            return getattr(import_module(f"vpatch.image.{module}"), attribute)


__all__ = [
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
