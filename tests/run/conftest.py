"""A vLLM in an environment of its own, which tests may change."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from vpatch.core.catalogue import Selection
from vpatch.run.content import Content
from vpatch.run.launch import planned
from vpatch.tree.locate import locate

from tests.conftest import Trees, environment
from tests.paths import link
from tests.run.standin import Farm, farm_for, standing_in


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

    def content(self, *also: str) -> Content:
        """Plan what a farm with the default overlays has to hold."""
        return planned(locate(self.root), Selection(also=also), self.cache)


def install(top: Path, release: Path) -> Installed:
    """Link a release's files into an environment below a folder."""
    root = environment(top / "env")
    shutil.copytree(release, root, copy_function=link, dirs_exist_ok=True)
    return Installed(root, top / "env/bin/python", top / "cache")


@pytest.fixture
def installed(slim: Trees, tmp_path: Path) -> Installed:
    return install(tmp_path, slim("0.20.2"))


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    """A farm that real processes can run, without torch."""
    return farm_for(standing_in(tmp_path / "site", "0.33.0"), tmp_path / "cache")
