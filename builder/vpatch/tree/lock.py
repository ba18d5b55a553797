"""One vpatch at a time per tree.

vpatch locks a folder: that leaves no file, and the kernel drops the lock when the process ends, even by `kill -9`. On a
network file system, the lock of a folder holds on one host only, so vpatch locks a file, too: the server keeps that
lock for all hosts, and drops it when the process is killed or, after a while, when its host is gone.

A lock file that locks by its existence would stay after `kill -9`, and no other host could know whether its process
lives. If an administrator has turned shared locks off (NFS mounted with `nolock` or `local_lock=`), nothing helps: then
only one host at a time may run vpatch.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vpatch.errors import Failure, Problem, naming
from vpatch.tree import backup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vpatch.tree import Tree

_PAUSE = 0.05
_REMOTE = frozenset({"9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs"})


def lock(tree: Tree, patience: float = 30.0) -> AbstractContextManager[None]:
    """Keep other vpatch processes from an installed vLLM during the block; wait for them at most `patience` seconds.

    What was read before the block may have changed: read it again inside.

    Raises:
        Failure: another vpatch stays at work, or there is no dist-info, or the file system has no locks.
    """
    backup.folder(tree)
    # vpatch never replaces METADATA, and whoever may change the tree may write to it. On a local file system it is not
    # locked: through hard links to an installer's cache, it may be the same file as that of other environments.
    return locked(tree.root / (tree.dist_info or ""), tree.root, "METADATA", os.O_RDWR, patience)


@contextmanager
def locked(path: Path, tree: Path, shared: str, flags: int, patience: float = 30.0) -> Iterator[None]:
    """Hold the lock of a folder during the block.

    Args:
        path: the folder.
        tree: the tree that the lock is for.
        shared: the file in the folder that is locked, too, on a network file system.
        flags: how to open that file: over NFS, an exclusive lock needs a file that is open for writing.
        patience: the seconds to wait for another process.

    Raises:
        Failure: another vpatch stays at work, or the file system has no locks.
    """
    with ExitStack() as held:
        with naming("cannot lock", str(path)):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        held.callback(os.close, folder)
        _take(folder, path, tree, patience)
        kind = file_system(folder) or ""
        if kind in _REMOTE or kind.startswith("fuse"):
            with naming("cannot lock", str(path / shared), f"; on this file system ({kind}) it keeps other hosts away"):
                file = os.open(shared, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
            held.callback(os.close, file)
            _take(file, path / shared, tree, patience)
        yield


def _take(file: int, path: Path, tree: Path, patience: float) -> None:
    with naming("cannot lock", str(path)):
        taken = _wait(file, patience)
    if not taken:
        raise Failure(Problem("another vpatch is at work", str(tree), f"it did not end in {patience:g} seconds"))


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


def mount(file: int) -> str | None:
    """Return the number of a descriptor's mount; None if the system does not report it."""
    try:
        found = re.search(r"^mnt_id:\s*(\d+)", Path(f"/proc/self/fdinfo/{file}").read_text("ascii"), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None


def file_system(file: int) -> str | None:
    """Return the type of a descriptor's file system as the kernel names it; None if the system does not report it."""
    number = mount(file)
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    return next((line.partition(" - ")[2].split()[0] for line in lines if line.split()[0] == number), None)
