"""One vpatch at a time per tree.

The lock is on a folder, so it leaves no file, and the kernel drops it when the process ends, however it ends. A network
file system keeps the lock of a folder to the host that took it. There, a file is locked as well: of files the server,
or the cluster, keeps the locks, and drops those of a process that was killed or, after a while, of a host that is gone.

A file that is itself the lock by being there is not used: after a kill -9 it stays, no other host can tell whether the
process that made it lives, and to remove it after some time would let two runs in. Nothing helps where an administrator
has turned shared locks off (NFS mounted with `nolock` or `local_lock=`): one host at a time must run vpatch there.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

from vpatch.errors import Failure, Problem, naming
from vpatch.tree import backup, mounts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from vpatch.tree.tree import Site

_PAUSE = 0.05
_REMOTE = frozenset({"9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs"})


def lock(site: Site, patience: float = 30.0) -> AbstractContextManager[None]:
    """Keep other vpatch processes from `site` during the block; wait `patience` seconds at most for them.

    What was read before the block may have changed: read it again inside.

    Raises:
        Failure: another vpatch stays at work, or there is no dist-info, or the file system has no locks.
    """
    backup.folder(site)
    # vpatch never replaces METADATA, and whoever may change the tree may write in it. Locally it is not locked: it may
    # be one file with that of other environments, through hard links to an installer's cache.
    return locked(site.root / (site.dist_info or ""), site.root, "METADATA", os.O_RDWR, patience)


@contextmanager
def locked(path: Path, tree: Path, shared: str, flags: int, patience: float = 30.0) -> Iterator[None]:
    """Hold the lock of the folder `path`, which stands for `tree`; the rest is as in `lock`.

    `shared` is the file in it that is locked, too, on a file system of several hosts, and `flags` is how to open it: an
    exclusive lock over NFS takes a file that is open for writing.
    """
    with ExitStack() as held:
        with naming("cannot lock", str(path)):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        held.callback(os.close, folder)
        _take(folder, path, tree, patience)
        kind = mounts.type_of(folder) or ""
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
