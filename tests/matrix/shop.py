"""What the tests of bad networks, of silence and of damage read: release 1.0 of the loopback index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vpatch.matrix.releases import Release, releases_of

from tests.loopback import SOURCES

if TYPE_CHECKING:
    from vpatch.matrix.cache import Cache

CORE, INIT = "vllm/engine/core.py", "vllm/__init__.py"
FILES = (CORE, INIT)
WANTED = {name: SOURCES[name] for name in FILES}


def one(cache: Cache | None, version: str = "1.0") -> Release:
    """Give a release."""
    (release,) = releases_of("vllm", [version], cache).releases
    return release
