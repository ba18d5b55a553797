"""Trees for tests of the whole program."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import Trees


def rewrite(file: Path, data: bytes) -> None:
    """Write a file anew: the old one may be a hard link to the pristine release."""
    file.unlink()
    file.write_bytes(data)


def ways_out(tree: Path, *, keep: bool = True) -> str:
    """Return what messages offer for an edit: to keep it only if `vpatch capture` can."""
    kept = f" keep it as a patch file by `vpatch capture {tree}`," if keep else ""
    shown = f"`vpatch diff --edits {tree}` shows it; undo it,{kept} or discard it, and all overlays, by "
    return f"{shown}`vpatch revert --force {tree}`"


@pytest.fixture
def tree(linked: Trees) -> Path:
    """A slim 0.20.2 for one test, made of hard links to the pristine release. Replace files; never write into them."""
    return linked("0.20.2", "site-packages")


@pytest.fixture
def copied(slim: Trees, tmp_path: Path) -> Path:
    """A slim 0.20.2 made of copies, which the test may also write into."""
    return shutil.copytree(slim("0.20.2"), tmp_path / "copied")
