"""What must hold before a run changes anything: no other vpatch is at work, and nothing will stop it half way.

vpatch locks a folder: that leaves no file, and the kernel drops the lock when the process ends, even by `kill -9`. On a
network file system, the lock of a folder holds on one host only, so vpatch locks a file, too: the server keeps that
lock for all hosts, and drops it when the process is killed or, after a while, when its host is gone. If shared locks
are turned off (NFS mounted with `nolock` or `local_lock=`), only one host at a time may run vpatch.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from errno import EACCES, EBUSY, ELOOP, ENOENT, EPERM, EROFS
from pathlib import Path, PurePosixPath
from stat import S_ISDIR, S_ISREG, S_ISVTX

from vpatch import locking
from vpatch.errors import Failure, Problem, failing, naming
from vpatch.tree import backup
from vpatch.tree.disk import Folders, is_folder, opened
from vpatch.tree.locate import Loaded, Tree

_REMOTE = frozenset({"9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs"})
# linux/fs.h: FS_IOC_GETFLAGS is _IOR('f', 1, long); IMMUTABLE and APPEND are what `chattr +i` and `+a` set.
_GET_FLAGS = 2 << 30 | 8 << 16 | ord("f") << 8 | 1
_FLAGS = {0x10: "immutable (chattr +i)", 0x20: "append-only (chattr +a)"}


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
    """Lock the folder `path`, which stands for `tree`, as `lock` does.

    On a network file system, the file `shared` in it is locked, too, opened with `flags`: for writing, as NFS demands.
    """
    with ExitStack() as held:
        with naming("cannot lock", str(path)):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        held.callback(os.close, folder)
        _take(folder, path, tree, patience)
        if kind := is_remote(folder):
            with naming("cannot lock", str(path / shared), f"on this file system ({kind}) it keeps other hosts away"):
                file = os.open(shared, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
            held.callback(os.close, file)
            _take(file, path / shared, tree, patience)
        yield


def _take(file: int, path: Path, tree: Path, patience: float) -> None:
    with naming("cannot lock", str(path)):
        try:
            locking.lock(file, patience=patience)
        except BlockingIOError as error:
            cause = f"it did not end in {patience:g} seconds"
            raise Failure(Problem("another vpatch is at work", str(tree), cause)) from error


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


def is_remote(file: int) -> str:
    """Return the type of a descriptor's file system if other machines may write to it; else ""."""
    kind = file_system(file) or ""
    return kind if kind in _REMOTE or kind.startswith("fuse") else ""


def refuse_links(tree: Tree, paths: Iterable[str]) -> None:
    """Check that no file to be written or removed is a symbolic link, or in a folder that leads out of the tree."""
    found = []
    for path in paths:
        target = tree.root / path
        folder = target.parent.resolve()
        if not folder.is_relative_to(tree.root):
            found.append(Problem("symlinked folder", path, f"it leads out of the tree, to {folder}"))
        elif target.is_symlink():
            found.append(Problem("symlink", path, f"it stands for {target.resolve()}, which vpatch would not change"))
    if found:
        raise Failure(*found)


def check(folders: Folders, path: str, expected: Mapping[str, Loaded | None]) -> None:
    """Raise an OSError if a file, which may be missing, cannot be replaced or removed.

    `expected` has, by path, files as they were read under the lock: another program may have changed one since.
    """
    folder, name = folders.place(path)
    _check_folder(folder)
    try:
        with opened(name, folder, 0) as file:
            _check_entry(file, folder)
            if path in expected and not ((loaded := expected[path]) and loaded.is_in(file)):
                raise OSError(EBUSY, "another program changed it while vpatch was at work; run again")
    except OSError as error:
        absent = error.errno == ENOENT and expected.get(path) is None
        # A rename replaces a link itself, so a link among the originals does no harm.
        if not absent and (error.errno != ELOOP or path in expected):
            raise


def refusals(folders: Folders, paths: Iterable[str]) -> list[Problem]:
    """List why files, and folders with all that is in them, cannot be removed."""
    problems = []
    for top in paths:
        try:
            with suppress(FileNotFoundError):
                folder, name = folders.place(top)
                _check_removal(folder, name, top)
                for at, inner, names, inside in folders.walk(top) if is_folder(name, folder) else ():
                    for found in (*inner, *names):
                        _check_removal(inside, found, str(Path(top).parent / at / found))
                    inner[:] = [found for found in inner if is_folder(found, inside)]
        except OSError as error:
            problems.append(failing("cannot remove", str(error.filename or top), error))
    return problems


def emptied(folders: Folders, top: str, gone: Collection[str], new: Collection[str]) -> list[str]:
    """List the folders in and at `top`, innermost first, that will be empty without `gone` and with `new`."""
    left, found = set(gone), []
    with suppress(FileNotFoundError):
        for where, inner, files, _ in folders.walk(top, topdown=False):
            here = (PurePosixPath(top).parent / where).as_posix()
            stays = any(path.startswith(f"{here}/") for path in new)
            if not stays and all(f"{here}/{name}" in left for name in (*files, *inner)):
                left.add(here)
                found.append(here)
    return found


def _check_removal(folder: int, name: str, path: str) -> None:
    try:
        _check_folder(folder)
        # The flags of a file that this user may not read, a socket or a link cannot be checked; it may be removable.
        readable = os.access(name, os.R_OK, dir_fd=folder)
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode if readable else 0
        with opened(name, folder, 0 if S_ISREG(mode) or S_ISDIR(mode) else os.O_PATH) as entry:
            _check_entry(entry, folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def _check_folder(folder: int) -> None:
    with opened(".", folder) as file:
        _refuse_flags(file, "its folder is")
    # Containers of old hosts answer every `faccessat2`, which `effective_ids` takes, with EPERM. Without it, the
    # capabilities of a user other than root do not count.
    right = os.W_OK | os.X_OK
    if not os.access(".", right, dir_fd=folder) and not os.access(".", right, dir_fd=folder, effective_ids=True):
        if os.fstatvfs(folder).f_flag & os.ST_RDONLY:
            raise OSError(EROFS, os.strerror(EROFS))
        raise PermissionError(EACCES, "permission denied to write in its folder")


def _check_entry(entry: int, folder: int) -> None:
    _refuse_flags(entry, "it is")
    if mount(entry) != mount(folder):
        raise OSError(EBUSY, "it is a mount point: something is mounted over it")
    above = os.fstat(folder)
    if above.st_mode & S_ISVTX and os.geteuid() not in (0, above.st_uid, os.fstat(entry).st_uid):
        raise PermissionError(EPERM, "it is another user's, in a folder with the sticky bit")


def _refuse_flags(file: int, what: str) -> None:
    """Refuse a file or folder that not even root may rename; file systems without such flags answer with an error."""
    try:
        flags = int.from_bytes(fcntl.ioctl(file, _GET_FLAGS, bytes(8))[:4], sys.byteorder)
    except OSError:
        return
    for flag, name in _FLAGS.items():
        if flags & flag:
            raise PermissionError(EPERM, f"{what} {name}")
