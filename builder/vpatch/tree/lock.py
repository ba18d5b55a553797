"""One vpatch at a time per tree.

vpatch locks a folder: that leaves no file, and the kernel drops the lock when the process ends, even by `kill -9`. On a
network file system, the lock of a folder holds on one host only, so vpatch locks a file, too: the server keeps that
lock for all hosts, and drops it when the process is killed or, after a while, when its host is gone. If shared locks
are turned off (NFS mounted with `nolock` or `local_lock=`), only one host at a time may run vpatch.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from vpatch.errors import Failure, Problem, naming
from vpatch.tree import backup
from vpatch.tree.locate import Tree

_PAUSE = 0.05
_REMOTE = frozenset({"9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs"})


def lock(tree: Tree, patience: float = 30.0) -> AbstractContextManager[None]:
    """Keep other vpatch processes from an installed vLLM during the block; wait for them at most `patience` seconds.

    What was read before the block may have changed: read it again inside.
    """
    backup.folder(tree)
    # vpatch never replaces METADATA, and who may change the tree may write to it. On a local file system it is not
    # locked: through hard links to an installer's cache, it may be the same file as that of other environments.
    return locked(tree.root / (tree.dist_info or ""), tree.root, "METADATA", os.O_RDWR, patience)


@contextmanager
def locked(path: Path, tree: Path, shared: str, flags: int, patience: float = 30.0) -> Iterator[None]:
    """Hold the lock of the folder `path`, which stands for `tree`; as `lock`.

    On a network file system, the file `shared` in it is locked, too; `flags` is how to open that one: over NFS, an
    exclusive lock needs a file that is open for writing.
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
    until = time.monotonic() + patience
    with naming("cannot lock", str(path)):
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    cause = f"it did not end in {patience:g} seconds"
                    raise Failure(Problem("another vpatch is at work", str(tree), cause)) from error
                time.sleep(_PAUSE)


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
