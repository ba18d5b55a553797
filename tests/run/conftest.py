"""A vLLM in an environment of its own, which tests may change, and a small one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from vpatch.core.catalogue import Selection
from vpatch.run import store
from vpatch.run.content import Content
from vpatch.run.launch import planned
from vpatch.tree.locate import locate

from tests.conftest import Trees, environment
from tests.paths import link
from tests.run.standin import Farm, farm_for, standing_in

FILE = "vllm/engine/arg_utils.py"


@dataclass(frozen=True)
class Installed:
    """A slim 0.20.2 in a virtual environment. Replace its files; never write into them.

    root: its site-packages.
    python: its interpreter.
    cache: a folder for farms, which does not exist yet.
    """

    root: Path
    python: Path
    cache: Path

    def content(self, *also: str, only: tuple[str, ...] | None = None) -> Content:
        """Plan what a farm has to hold, by default with the default overlays."""
        return planned(locate(self.root), Selection(only=only, also=also), self.cache)


def install(top: Path, release: Path) -> Installed:
    """Link a release's files into an environment below a folder."""
    root = environment(top / "env")
    shutil.copytree(release, root, copy_function=link, dirs_exist_ok=True)
    return Installed(root, top / "env/bin/python", top / "cache")


@pytest.fixture(scope="session")
def _installed(slim: Trees, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("installed"), slim("0.20.2"))


@pytest.fixture
def installed(_installed: Installed, tmp_path: Path) -> Installed:
    top = shutil.copytree(_installed.python.parents[1], tmp_path / "env", copy_function=link, symlinks=True)
    root = top / _installed.root.relative_to(_installed.python.parents[1])
    return Installed(root, top / "bin/python", tmp_path / "cache")


@pytest.fixture
def small(tmp_path: Path) -> Content:
    """What a farm of a vLLM of three files has to hold: one is changed, and one is new."""
    root = tmp_path / "site-packages"
    for file in ("vllm/__init__.py", FILE, "vllm/v1/core.py"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"x = 1\n")
    return Content(root, ("one",), {FILE: b"x = 2\n", "vllm/_vpatch/new.py": b""})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile nothing, which takes a process."""
    monkeypatch.setattr(store, "compiled", lambda *_: None)


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    """A farm that real processes can run, without torch."""
    return farm_for(standing_in(tmp_path / "site", "0.33.0"), tmp_path / "cache")
