"""Where the tests of imports run; a release to change, and the command that captures what was done to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Program, Ran
from tests.loopback import index, settings
from tests.porting.installed import Capture, copied
from tests.releases import tree_of

__all__ = ["index", "settings"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of 0.20.2, of hard links."""
    return copied("0.20.2", tmp_path / "tree")


@pytest.fixture
def capture(vpatch: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Capture:
    """Run `vpatch capture` with the originals at hand; a file goes into the test's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))

    def run(*arguments: str | Path, pristine: bool = True) -> Ran:
        more = ("--pristine", tree_of("0.20.2")) if pristine else ()
        return vpatch("capture", "-o", tmp_path / "patches", *arguments, *more)

    return run


@pytest.fixture
def offline(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that does not answer."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
