"""One vpatch at a time per tree."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from vpatch.errors import Failure, Problem
from vpatch.site import kept
from vpatch.site.disk import naming

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from vpatch.site.model import Site

_PAUSE = 0.05


def lock(site: Site, patience: float = 30.0) -> AbstractContextManager[None]:
    """Keep other vpatch processes from `site` during the block; wait `patience` seconds at most for them.

    The lock is on the dist-info folder itself, so it leaves no file and ends with the process. What was read before the
    block may have changed: read it again inside.

    Raises:
        Failure: another vpatch stays at work, or there is no dist-info, or the file system has no locks.
    """
    kept.folder(site)
    return locked(site.root / (site.dist_info or ""), site.root, patience)


@contextmanager
def locked(path: Path, tree: Path, patience: float = 30.0) -> Iterator[None]:
    """Hold the lock of the folder `path`, which stands for `tree`; the rest is as in `lock`."""
    with naming("cannot lock", str(path)):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with naming("cannot lock", str(path)):
            held = _wait(folder, patience)
        if not held:
            raise Failure(Problem("another vpatch is at work", str(tree), f"it did not end in {patience:g} seconds"))
        yield
    finally:
        os.close(folder)


def _wait(file: int, patience: float) -> bool:
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_PAUSE)
        else:
            return True
