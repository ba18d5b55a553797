"""The repository, the folder of what tests fetch (ignored by git), and links to its files."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"


def copy_sources(folder: Path, names: Iterable[str]) -> None:
    """Copy files and folders of the repository, as they are in the working tree, without bytecode."""
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, folder / name)


def link(source: str, target: str) -> None:
    """Make a hard link, or a copy where there can be none; for `shutil.copytree`."""
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
