"""A cache of its own for each test, release 1.0 of the loopback index, and no needless worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, TypeVar

import pytest
from vpatch.matrix import run
from vpatch.matrix.cache import Cache
from vpatch.matrix.releases import IndexRelease, releases_of

from tests.loopback import SOURCES, index, settings
from tests.processes import UNWATCHED

__all__ = ["index", "settings"]

CORE, INIT = "vllm/engine/core.py", "vllm/__init__.py"
FILES = (CORE, INIT, "vllm/not/there.py")
WANTED = {name: SOURCES[name] for name in (CORE, INIT)}


def release_of(cache: Cache | None, version: str = "1.0") -> IndexRelease:
    (release,) = releases_of("vllm", [version], cache).releases
    return release


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither read nor write verdicts in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """The user's cache, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return Cache.opened()


T = TypeVar("T")


class Here(Executor):
    """Runs the jobs of worker processes in this process, which keeps what it has parsed."""

    def __init__(self, workers: int, context: object, initializer: object) -> None:
        """Accept what a pool of processes accepts."""

    def submit(self, job: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(job(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done


@pytest.fixture(autouse=True)
def _without_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no worker processes from this one, unless the test uses `real_pool`."""
    if "real_pool" not in request.fixturenames:
        monkeypatch.setattr(run, "ProcessPoolExecutor", Here)


@pytest.fixture
def real_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start worker processes, without coverage: it would take the longest. `test_worker` measures their code."""
    for name in UNWATCHED.keys() & os.environ.keys():
        monkeypatch.setenv(name, "")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files; the test must leave none."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []
