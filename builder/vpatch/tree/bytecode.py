"""The compiled twins of a source file, and which of them are stale: Python would run other code than the source's.

Python trusts a twin whose header has the source's modification time, in whole seconds, and its size in bytes. After an
edit that changes neither, which image layers with fixed times make likely, the old code runs.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.machinery import SOURCE_SUFFIXES
from pathlib import Path

from vpatch.core import nesting
from vpatch.errors import Failure, failing, naming
from vpatch.foreign import opened_regular, read_regular
from vpatch.guest.check import syntax_error, twins_in
from vpatch.guest.marshalled import HEADER, is_hash_based, is_of, is_trusted


def twins(source: Path) -> tuple[Path, ...]:
    """List every bytecode file of `source`, of any interpreter and optimization, and the legacy `<name>.pyc`."""
    if source.suffix not in SOURCE_SUFFIXES:
        return ()
    cache = source.with_name("__pycache__")
    found: list[str] = []
    with naming("cannot read", str(cache)), suppress(FileNotFoundError, NotADirectoryError):
        found = twins_in(os.listdir(cache), source.stem)  # noqa: PTH208 - names are what is compared
    legacy = source.with_suffix(".pyc")
    return (*(cache / name for name in found), *([legacy] if legacy.is_file() else []))


def stale(source: Path) -> tuple[Path, ...]:
    """List the twins of `source` that Python would run although they were not compiled from it."""
    found = twins(source)
    if not found:
        return ()
    try:
        if not source.exists():
            return tuple(path for path in found if path.parent == source.parent)
        return tuple(path for path in found if path.parent != source.parent and _is_stale(path, source))
    except OSError as error:
        raise Failure(failing("cannot read", str(error.filename), error)) from error


def refusal(source: bytes, path: str) -> str:
    """Return why a module does not compile with this Python, or is too large to; "" if it compiles, or is data."""
    return (_too_large(source) or syntax_error(source, path)) if path.endswith(".py") else ""


def _is_stale(path: Path, source: Path) -> bool:
    """Whether Python would run a twin, and it has not this source's code, or vpatch cannot compare it."""
    with opened_regular(path) as file:
        head, at = os.pread(file, HEADER, 0), os.fstat(file)
    of = source.stat()
    if not is_trusted(head, (int(of.st_mtime), of.st_size)):
        return False
    if not is_hash_based(head) and at.st_mtime_ns >= of.st_ctime_ns:
        return False  # it was compiled later; an older one is compared, since unpacking an image renews every ctime
    data = read_regular(source)
    return not is_of(read_regular(path), path.name, data, comparable=not _too_large(data))


def _too_large(source: bytes) -> str:
    try:
        nesting.bound(nesting.decode(source)[0])
    except (nesting.Unparsable, SyntaxError, ValueError) as error:
        return str(error) or "not readable as text"
    return ""
