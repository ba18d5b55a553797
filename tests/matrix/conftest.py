"""A cache of its own for each test, and the loopback index."""

from __future__ import annotations

from pathlib import Path

import pytest
from vpatch.matrix.cache import Cache

from tests.loopback import settings, site

__all__ = ["settings", "site"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """The user's cache, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return Cache.opened()
