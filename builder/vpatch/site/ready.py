"""What would refuse a rename or a removal, looked for before the first one: a run must not stop half way."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from errno import EBUSY, ELOOP, ENOENT, EPERM
from fcntl import ioctl
from pathlib import Path
from typing import TYPE_CHECKING

from vpatch.site import mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vpatch.site.folders import Folders

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
    with _opened(".", folder, os.O_DIRECTORY) as file:
        _refuse_flags(file, "its folder is")
    try:
        with _opened(name, folder) as file:
            _refuse_flags(file, "it is")
            if mounts.number(file) != mounts.number(folder):
                raise OSError(EBUSY, "it is a mount point: something is mounted over this file")
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
    """Check that a folder, which may be missing, can be removed with all that is in it.

    Raises:
        OSError: it cannot; its `filename` is what stands in the way.
    """
    with suppress(FileNotFoundError):
        for at, folders, names, folder in tree.walk(top):
            for name in (".", *(name for name in names if not _is_link(name, folder))):
                try:
                    with _opened(name, folder) as file:
                        _refuse_flags(file, "it is")
                except OSError as error:
                    raise OSError(error.errno, error.strerror, str(Path(top).parent / at / name)) from error
            folders[:] = [name for name in folders if not _is_link(name, folder)]


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


def _is_link(name: str, folder: int) -> bool:
    try:
        os.readlink(name, dir_fd=folder)
    except OSError:
        return False
    return True


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
