"""A cache of its own for each test, and release 1.0 of the loopback index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from vpatch.matrix.cache import Cache
from vpatch.matrix.releases import Release, releases_of

from tests.loopback import SOURCES, index, settings

__all__ = ["index", "settings"]

CORE, INIT = "vllm/engine/core.py", "vllm/__init__.py"
FILES = (CORE, INIT, "vllm/not/there.py")
WANTED = {name: SOURCES[name] for name in (CORE, INIT)}


def release_of(cache: Cache | None, version: str = "1.0") -> Release:
    """Return a release of the loopback index."""
    (release,) = releases_of("vllm", [version], cache).releases
    return release


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """The user's cache, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return Cache.opened()


@pytest.fixture(scope="module", autouse=True)
def _processes_unmeasured() -> Iterator[None]:
    """Keep coverage out of the pool, whose processes take the longest; `test_worker` measures their code."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
            if name in os.environ:
                patch.setenv(name, "")
        yield


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files; the test must leave none."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []
