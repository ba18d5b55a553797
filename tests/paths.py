"""The repository, the folder of what tests fetch (ignored by git), and links to its files."""

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"


def link(source: str, target: str) -> None:
    """Make a hard link, or a copy where there can be none; for `shutil.copytree`."""
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
