"""Find what would refuse a rename or a removal before the first one: a run must not stop half way."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EACCES, EBUSY, ELOOP, ENOENT, EPERM
from fcntl import ioctl
from pathlib import Path, PurePosixPath
from stat import S_ISDIR, S_ISREG, S_ISVTX

from vpatch.errors import Failure, Problem, cause
from vpatch.tree import disk, lock
from vpatch.tree.disk import Folders
from vpatch.tree.locate import Loaded, Tree

# linux/fs.h: FS_IOC_GETFLAGS is _IOR('f', 1, long); IMMUTABLE and APPEND are what `chattr +i` and `+a` set.
_GET_FLAGS = 2 << 30 | 8 << 16 | ord("f") << 8 | 1
_FLAGS = {0x10: "immutable (chattr +i)", 0x20: "append-only (chattr +a)"}


def refuse_links(tree: Tree, paths: Iterable[str]) -> None:
    """Check that no file to be written or removed is a symbolic link, or in a folder that leads out of the tree.

    Raises:
        Failure: some are; all are named.
    """
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
        with _opened(name, folder) as file:
            _check_entry(file, folder)
            if path in expected and not ((loaded := expected[path]) and loaded.is_in(file)):
                raise OSError(EBUSY, "another program changed it while vpatch was at work; run again")
    except OSError as error:
        # A rename replaces a link itself, so a link among the originals does no harm.
        harmless = (
            expected.get(path) is None if error.errno == ENOENT else error.errno == ELOOP and path not in expected
        )
        if not harmless:
            raise


def refusals(folders: Folders, paths: Iterable[str]) -> list[Problem]:
    """List why files, and folders with all that is in them, cannot be removed."""
    problems = []
    for top in paths:
        try:
            with suppress(FileNotFoundError):
                folder, name = folders.place(top)
                _check_removal(folder, name, top)
                for at, inner, names, inside in folders.walk(top) if disk.is_folder(name, folder) else ():
                    for found in (*inner, *names):
                        _check_removal(inside, found, str(Path(top).parent / at / found))
                    inner[:] = [found for found in inner if disk.is_folder(found, inside)]
        except OSError as error:
            problems.append(Problem("cannot remove", str(error.filename or top), cause(error)))
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
        # A user who may not read a file may still remove it; then its flags cannot be checked.
        readable = os.access(name, os.R_OK, dir_fd=folder) and _is_plain(name, folder)
        with _opened(name, folder, 0 if readable else os.O_PATH) as entry:
            _check_entry(entry, folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def _check_folder(folder: int) -> None:
    """Refuse a folder whose names may not be changed."""
    with _opened(".", folder, os.O_DIRECTORY) as file:
        _refuse_flags(file, "its folder is")
    # Containers of old hosts answer every `faccessat2`, which `effective_ids` takes, with EPERM. Without it, the
    # capabilities of a user other than root do not count.
    right = os.W_OK | os.X_OK
    if not os.access(".", right, dir_fd=folder) and not os.access(".", right, dir_fd=folder, effective_ids=True):
        raise PermissionError(EACCES, "permission denied to write in its folder")


def _check_entry(entry: int, folder: int) -> None:
    """Refuse an open file or folder that may not be renamed or removed, or replaced by a rename."""
    _refuse_flags(entry, "it is")
    if lock.mount(entry) != lock.mount(folder):
        raise OSError(EBUSY, "it is a mount point: something is mounted over it")
    above = os.fstat(folder)
    if above.st_mode & S_ISVTX and os.geteuid() not in (0, above.st_uid, os.fstat(entry).st_uid):
        raise PermissionError(EPERM, "it is another user's, in a folder with the sticky bit")


@contextmanager
def _opened(name: str, folder: int, flags: int = 0) -> Iterator[int]:
    try:
        with disk.opened(name, folder, flags) as file:
            yield file
    except OSError as error:
        if error.errno != ELOOP:
            raise
        raise OSError(ELOOP, "it is a symbolic link") from error


def _is_plain(name: str, folder: int) -> bool:
    """Whether `name` is a file or a folder: a socket cannot be opened, and a link is not followed."""
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    return S_ISREG(mode) or S_ISDIR(mode)


def _refuse_flags(file: int, what: str) -> None:
    """Refuse a file or folder that not even root may rename; file systems without such flags answer with an error."""
    try:
        flags = int.from_bytes(ioctl(file, _GET_FLAGS, bytes(8))[:4], sys.byteorder)
    except OSError:
        return
    for flag, name in _FLAGS.items():
        if flags & flag:
            raise PermissionError(EPERM, f"{what} {name}")
