"""What would refuse a rename or a removal, looked for before the first one: a run must not stop half way."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from errno import EACCES, EBUSY, ELOOP, ENOENT, EPERM
from fcntl import ioctl
from pathlib import Path
from stat import S_ISDIR, S_ISREG, S_ISVTX
from typing import TYPE_CHECKING

from vpatch.tree import disk, mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vpatch.tree.folders import Folders

# linux/fs.h: FS_IOC_GETFLAGS is _IOR('f', 1, long); IMMUTABLE and APPEND are what `chattr +i` and `+a` set.
_GET_FLAGS = 2 << 30 | 8 << 16 | ord("f") << 8 | 1
_FLAGS = {0x10: "immutable (chattr +i)", 0x20: "append-only (chattr +a)"}


def check(tree: Folders, path: str, expected: Mapping[str, bytes | None]) -> None:
    """Check that a file, which may be missing, can be replaced or removed.

    `expected` has by path what a file held when the run was planned: another program may have changed it since, or put
    something else in its place.

    Raises:
        OSError: it cannot, or changed since.
    """
    folder, name = tree.place(path)
    _check_folder(folder)
    try:
        with _opened(name, folder) as file:
            _check_entry(file, folder)
            if path in expected and not _holds(file, expected[path]):
                raise OSError(EBUSY, "another program changed it while vpatch was at work; run again")
    except OSError as error:
        # A rename replaces a link itself, so one among the originals does no harm.
        harmless = (
            expected.get(path) is None if error.errno == ENOENT else error.errno == ELOOP and path not in expected
        )
        if not harmless:
            raise


def check_tree(tree: Folders, top: str) -> None:
    """Check that a file or folder, which may be missing, can be removed, a folder with all that is in it.

    Raises:
        OSError: it cannot; its `filename` is what stands in the way.
    """
    with suppress(FileNotFoundError):
        folder, name = tree.place(top)
        _check_removal(folder, name, top)
        if not disk.is_folder(name, folder):
            return
        for at, folders, names, inside in tree.walk(top):
            for found in (*folders, *names):
                _check_removal(inside, found, str(Path(top).parent / at / found))
            folders[:] = [found for found in folders if disk.is_folder(found, inside)]


def _check_removal(folder: int, name: str, path: str) -> None:
    try:
        _check_folder(folder)
        # Nothing has to be read: who may not read a file may still remove it. Its flags are not seen then.
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
    if mounts.number(entry) != mounts.number(folder):
        raise OSError(EBUSY, "it is a mount point: something is mounted over it")
    above = os.fstat(folder)
    if above.st_mode & S_ISVTX and os.geteuid() not in (0, above.st_uid, os.fstat(entry).st_uid):
        raise PermissionError(EPERM, "it is another user's, in a folder with the sticky bit")


@contextmanager
def _opened(name: str, folder: int, flags: int = 0) -> Iterator[int]:
    # Without O_NONBLOCK, a named pipe would wait for a writer.
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder)
    except OSError as error:
        if error.errno != ELOOP:
            raise
        raise OSError(ELOOP, "it is a symbolic link") from error
    try:
        yield file
    finally:
        os.close(file)


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


def _holds(file: int, content: bytes | None) -> bool:
    if content is None or os.fstat(file).st_size != len(content):
        return False
    with os.fdopen(os.dup(file), "rb") as stream:
        return stream.read() == content
