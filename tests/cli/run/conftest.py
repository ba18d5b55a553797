"""A vLLM for `vpatch run`, and a current folder without anything that would come before it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Trees
from tests.run.conftest import Installed, install


@pytest.fixture(scope="module")
def installed(slim: Trees, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A slim 0.20.2 in an environment, and a cache that has its farm after the first run. Do not modify it."""
    return install(tmp_path_factory.mktemp("run"), slim("0.20.2"))


@pytest.fixture
def own(slim: Trees, tmp_path: Path) -> Installed:
    """The same for one test, whose files may be replaced."""
    return install(tmp_path, slim("0.20.2"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.delenv(name, raising=False)
    tests, become = os.getpid(), os.execvpe

    def only_in_a_fork(*arguments: Any) -> None:
        assert os.getpid() != tests, "a command that must not start"
        become(*arguments)

    monkeypatch.setattr(os, "execvpe", only_in_a_fork)
