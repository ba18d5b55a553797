"""Read what vpatch did not write: files that may be pipes, devices or endless, and documents that may nest forever.

Whoever owns a tree, an image or a process chooses what stands at a path. So a file is opened without blocking, must be
a regular one, and is read up to a bound; a document has a bound for its size and its depth. Every refusal is an
`OSError` or a `ValueError` with a cause that can be printed.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, NoReturn

CODE_BYTES = 1 << 24  # of a module, a RECORD or a note beside them; the largest of vLLM has 1 MB
TOML_BYTES = 1 << 18  # tomllib takes a time that grows with the square of some documents' size
DEPTH = 64  # arrays and objects inside each other


def read_regular(path: str | os.PathLike[str], most: int = CODE_BYTES) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Args:
        path: the file; links are followed.
        most: the bound, in bytes.

    Raises:
        OSError: it is no regular file, is larger, or cannot be read.
    """
    with opened_regular(path) as file:
        return read_opened(file, most)


@contextmanager
def opened_regular(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a regular file during the block, for those who read a part of it; raises what `read_regular` raises."""
    try:
        try:
            # Opening a device can already have an effect, so `stat` comes before `open`; the second look is for a swap.
            _refuse_irregular(os.stat(path))  # noqa: PTH116 - as often as files are read
        except ValueError as error:  # a null character, or one that UTF-8 cannot encode
            raise OSError(errno.EINVAL, "no file can have this name") from error
        with descriptor(path, os.O_NONBLOCK | os.O_NOCTTY) as file:
            _refuse_irregular(os.fstat(file))
            yield file
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


def walk(
    top: str | os.PathLike[str], *, topdown: bool = True, dir_fd: int | None = None
) -> Iterator[tuple[str, list[str], list[str], int]]:
    """Walk a folder as `os.fwalk` does, and follow no link; yield nothing if `top` is no folder.

    `os.fwalk` opens `top` before it looks what it is, and would wait at a pipe.

    Raises:
        OSError: `top` leads to nothing, or a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    # A link is followed for its error alone: it may lead in a circle.
    modes = [os.stat(top, dir_fd=dir_fd, follow_symlinks=follow).st_mode for follow in (True, False)]
    if all(map(stat.S_ISDIR, modes)):
        yield from os.fwalk(top, topdown=topdown, onerror=refuse, dir_fd=dir_fd)


@contextmanager
def descriptor(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file or folder during the block, with these flags; raises OSError."""
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)


def read_opened(file: int, most: int = CODE_BYTES) -> bytes:
    """Return the content of an open file, from its beginning, as `read_regular` does; its offset stays."""
    about = os.fstat(file)
    _refuse_irregular(about)
    if about.st_size > most:
        raise OSError(errno.EFBIG, f"it has {about.st_size:,} bytes, more than {most:,}")
    # Never past the size: files of /proc report none, and reading them blocks, or takes the kernel's messages away.
    parts, at = list[bytes](), 0
    while at < about.st_size and (part := os.pread(file, about.st_size - at, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def parse_json(document: str | bytes, most: int = CODE_BYTES) -> Any:
    """Parse JSON of at most `most` bytes, whose arrays and objects nest at most 64 deep.

    Raises:
        ValueError: it is something else (NaN and Infinity are no JSON), or has text that UTF-8 cannot encode.
    """
    _refuse_long(document, most)
    try:
        found = json.loads(document, parse_constant=_refuse_constant)
    except RecursionError:
        raise _too_deep() from None
    _refuse_deep(found)
    json.dumps(found, ensure_ascii=False).encode()
    return found


def parse_toml(document: bytes) -> dict[str, Any]:
    """Parse TOML of at most `TOML_BYTES`, whose arrays and tables nest at most 64 deep.

    Raises:
        ValueError: it is something else.
    """
    import tomllib  # rarely needed, and slow to import

    _refuse_long(document, TOML_BYTES)
    try:
        found = tomllib.loads(document.decode())
    except RecursionError:
        raise _too_deep() from None
    _refuse_deep(found)
    return found


def is_nothing(path: str | os.PathLike[str]) -> bool:
    """Whether a path leads to nothing; false if the system does not tell, such as for a link in a circle."""
    try:
        os.stat(path)  # noqa: PTH116 - of any path
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def kind_of(mode: int) -> str:
    """Return what the mode of a file that is no folder says it is, such as "a pipe"."""
    kinds = {stat.S_ISREG: "a file", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    return next((kind for is_one, kind in kinds.items() if is_one(mode)), "a device")


def _refuse_irregular(about: os.stat_result) -> None:
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")


def _refuse_long(document: str | bytes, most: int) -> None:
    if len(document) > most:
        raise ValueError(f"it has {len(document):,} bytes, more than {most:,}")


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")


def _refuse_deep(document: object) -> None:
    level: list[object] = [document]
    for _ in range(DEPTH):
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = list(chain.from_iterable(inside))
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"it nests more than {DEPTH} deep")
