"""A cache of its own for each test, and the loopback index."""

from __future__ import annotations

import os
from collections.abc import Iterator
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


@pytest.fixture(scope="module", autouse=True)
def _processes_unmeasured() -> Iterator[None]:
    """Keep coverage out of the pool, whose processes take the longest; `test_looking` measures their code."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
            if name in os.environ:
                patch.setenv(name, "")
        yield


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go, of which none may be left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []
