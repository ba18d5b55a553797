"""The compiled twins of a source file, and which of them are stale: Python would run other code than the source's.

Python trusts a twin whose header has the source's modification time, in whole seconds, and its size in bytes. After an
edit that changes neither, which image layers with fixed times make likely, the old code runs.
"""

from __future__ import annotations

import os
import re
from _imp import source_hash
from collections.abc import Iterable
from contextlib import suppress
from importlib.machinery import SOURCE_SUFFIXES
from pathlib import Path

from vpatch.core import nesting
from vpatch.errors import Code, Failure, Problem, failing, naming
from vpatch.foreign import opened_regular, read_regular
from vpatch.tree.locate import Tree
from vpatch.tree.marshalled import HEADER, is_compiled_from, is_of_this_interpreter

_HASH_BASED, _CHECKED = 0b01, 0b10
_MASK = 0xFFFFFFFF


def twins(source: Path) -> tuple[Path, ...]:
    """List every bytecode file of `source`, of any interpreter and optimization, and the legacy `<name>.pyc`."""
    if source.suffix not in SOURCE_SUFFIXES:
        return ()
    ours = re.compile(re.escape(source.stem) + r"\.[^.]+(\.opt-[^.]*)?\.pyc").fullmatch
    cache = source.with_name("__pycache__")
    found = []
    with naming("cannot read", str(cache)), suppress(FileNotFoundError, NotADirectoryError):
        found = [path for path in cache.iterdir() if ours(path.name)]
    legacy = source.with_suffix(".pyc")
    return (*sorted(found), *([legacy] if legacy.is_file() else []))


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


def problems(tree: Tree, paths: Iterable[str]) -> tuple[Problem, ...]:
    """List the bytecode that Python would run instead of `paths`."""
    found = (twin.relative_to(tree.root).as_posix() for path in sorted(set(paths)) for twin in stale(tree.root / path))
    why = "python would run it, and it was not compiled from the source beside it"
    return tuple(Problem("stale bytecode", twin, why, code=Code.STALE_BYTECODE) for twin in found)


def _is_stale(path: Path, source: Path) -> bool:
    with opened_regular(path) as file:
        head, at = os.pread(file, HEADER, 0), os.fstat(file)
    flags = int.from_bytes(head[4:8], "little")
    if len(head) < HEADER or flags & ~(_HASH_BASED | _CHECKED) or flags & _CHECKED:
        return False  # Python itself refuses it, or compares it with the source
    if flags & _HASH_BASED:
        return head[8:] != source_hash(int.from_bytes(head[:4], "little"), read_regular(source))
    of = source.stat()
    trusted = head[8:] == b"".join((word & _MASK).to_bytes(4, "little") for word in (int(of.st_mtime), of.st_size))
    return trusted and at.st_mtime_ns < of.st_ctime_ns and not _compiled_from(path, source)


def _compiled_from(path: Path, source: Path) -> bool:
    """Whether a twin with suspicious times holds this source's code: unpacking an image renews every ctime.

    False for another interpreter's twin and for a source that is too large to compile: vpatch cannot compare those.
    """
    content = read_regular(path)
    if not is_of_this_interpreter(content):
        return False
    source_bytes = read_regular(source)
    try:
        nesting.bound(nesting.decode(source_bytes)[0])
    except (nesting.Refused, SyntaxError, ValueError):
        return False
    return is_compiled_from(content, source_bytes, path.name)
