"""Files as another process sees them: below its root, read with its user's rights, and within a time.

Who runs a process chooses what stands at the paths that it names: links that lead out of its container, pipes, devices,
files of the kernel, file systems that never answer, files that its user may not read. So a child of this process reads
them, which the root of the other process holds, which has its user's rights, and which ends after a while.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from vpatch.foreign import CODE_BYTES, descriptor, parse_json, read_opened
from vpatch.processes import Process, User

PATIENCE_S = 30.0  # for all files that one process names: some dozens
_MOST_LINKS = 40  # on the way to one file, as of Linux
_MOST = 1 << 22  # bytes of an answer

# Of linux/magic.h: file systems whose files are the kernel's. To open one may already have an effect.
_OF_KERNEL = {
    *(0x9FA0, 0x62656572, 0x74726163, 0x64626720),  # proc, sysfs, tracefs, debugfs
    *(0x73636673, 0x62656570, 0x27E0EB, 0x63677270),  # securityfs, configfs, cgroup, cgroup2
    *(0xCAFE4A11, 0xDE5E81E4, 0x6165676C, 0x1CD1),  # bpf, efivarfs, pstore, devpts
    *(0x6E736673, 0x42494E4D, 0x19800202, 0xF97CFF8C),  # nsfs, binfmt_misc, mqueue, selinux
    *(0x43415D53, 0xABBA1974),  # smack, xenfs
}


class ProcessFiles:
    """The files below the root of a process."""

    def __init__(self, root: int) -> None:
        """Read below an open folder."""
        self._root = root

    def read(self, file: Path) -> bytes:
        """Return the content of a file.

        Raises:
            OSError: it is no regular file of a file system that keeps files, it is too large, or cannot be read.
        """
        with self._found(str(file)) as found:
            # Regular or not is known before it is opened, and nobody can put another file there in between.
            if not stat.S_ISREG(os.fstat(found).st_mode) or _file_system(found) in _OF_KERNEL:
                raise OSError(errno.EINVAL, "it is no file of code")
            with descriptor(f"/proc/self/fd/{found}", os.O_NONBLOCK) as opened:
                return read_opened(opened, CODE_BYTES)

    def identity(self, place: str) -> list[int]:
        """Return the device and the number of a file or folder.

        Raises:
            OSError: it cannot be found.
        """
        with self._found(place) as found:
            about = os.fstat(found)
            return [about.st_dev, about.st_ino]

    @contextmanager
    def _found(self, path: str) -> Iterator[int]:
        """Find what a path names, without opening it. Every link on the way starts at the root, and none leaves it."""
        trail, left, links = [os.dup(self._root)], path.split("/")[::-1], 0
        try:
            while left:
                _enter(trail, left.pop())
                if stat.S_ISLNK(os.fstat(trail[-1]).st_mode):
                    links += 1
                    if links > _MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    target = os.readlink("", dir_fd=trail[-1])
                    _leave(trail, 1 if target.startswith("/") else len(trail) - 1)
                    left.extend(target.split("/")[::-1])
            yield trail[-1]
        finally:
            _leave(trail, 0)


def _enter(trail: list[int], name: str) -> None:
    """Go to what a folder has under a name. The trail has the folders on the way, from the root on."""
    if not stat.S_ISDIR(os.fstat(trail[-1]).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if name == "..":
        _leave(trail, max(1, len(trail) - 1))
    elif name not in {"", "."}:
        trail.append(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=trail[-1]))


def _leave(trail: list[int], steps: int) -> None:
    """Go back to the first steps of a trail."""
    while len(trail) > steps:
        os.close(trail.pop())


def answered(process: Process, user: User, ask: Callable[[ProcessFiles], Any], patience: float = PATIENCE_S) -> Any:
    """Return the answer of a question to the files of a process, which has to be JSON.

    Args:
        process: the process.
        user: with whose rights they are read, where this process is root.
        ask: the question.
        patience: how long the answer may take, in seconds.

    Raises:
        OSError: the process ended or belongs to another user, the answer takes too long, or the question raised this.
    """
    with descriptor(process.folder / "root", os.O_PATH | os.O_DIRECTORY) as root:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _answer(writing, root, user, ask)
        os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        try:
            found = _received(pipe.fileno(), patience)
        except OSError:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, os.WNOHANG)  # it may hang in the kernel, where nothing ends it
            raise
    os.waitpid(child, 0)
    try:
        error, answer = parse_json(found, _MOST)
    except ValueError:
        raise OSError(errno.ECANCELED, "the process that read its files was ended") from None
    if error:
        raise OSError(*error)
    return answer


def _answer(writing: int, root: int, user: User, ask: Callable[[ProcessFiles], Any]) -> NoReturn:
    try:
        with suppress(ImportError):
            import ctypes  # noqa: F401 - for `_file_system`: the user need not be able to read this Python's folder
        try:
            _become(user)
            answer = [None, ask(ProcessFiles(root))]
        except OSError as error:
            answer = [[error.errno or errno.EIO, error.strerror or str(error)], None]
        left = json.dumps(answer).encode()
        while left:
            left = left[os.write(writing, left) :]
    finally:
        os._exit(0)  # without what the parent does at its end


def _become(user: User) -> None:
    """Take the rights of a user, for good. Another one's are refused to all but root, which is no harm."""
    if os.geteuid() == 0 and user.id != 0:
        try:
            os.setgroups(user.groups)
            os.setresgid(user.group, user.group, user.group)
            os.setresuid(user.id, user.id, user.id)
        except OSError as error:
            raise OSError(error.errno, f"this root may not take the rights of user {user.id}") from error


def _received(pipe: int, patience: float) -> bytes:
    found, end = b"", time.monotonic() + patience
    while select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(pipe, 1 << 16)
        if not part:
            return found
        found += part
        if len(found) > _MOST:
            break
    raise TimeoutError(errno.ETIMEDOUT, f"its files could not be read within {patience:g} seconds")


def _file_system(found: int) -> int:
    """Return the magic number of a file's file system, the first 4 bytes of what statfs(2) returns; 0 if unknown."""
    import ctypes  # of `verify --pid` only, and slow to import

    about = ctypes.create_string_buffer(256)
    with suppress(AttributeError):  # a system without statfs
        if ctypes.CDLL(None, use_errno=True).fstatfs(found, about) == 0:
            # 8 bytes, but on s390x
            return int.from_bytes(about.raw[:4], sys.byteorder)
    return 0
