"""Stamps of the code that a result rests on: what Python imported, opened or listed for it.

Overlays may read anything while they are imported. An audit hook of Python sees every open and every list of a folder,
by whatever package: there is no other list of what they read. It sees no extension that opens files by itself, and no
question whether a file exists. Of the environment, only the variables of Python, vLLM and vpatch count.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import source_from_cache

BYTECODE = "__pycache__"

Stamp = list[list[str | int]]
"""What tells one state of a file or folder from another, without a read of its files; [] of what does not exist."""

_LISTED = ("os.listdir", "os.scandir")
_SYSTEM = ("/proc/", "/sys/", "/dev/")  # differ in each process

_records: list[dict[str, Stamp]] = []  # of the blocks that run: a hook cannot be removed


@contextmanager
def opened() -> Iterator[dict[str, Stamp]]:
    """Yield the stamps of what is opened in the block, each from before; what is imported is added at its end.

    Modules that were imported before count, too, and so do the folders of packages and of `sys.path`, where a new
    module may come before another. Those of Python itself do not, and bytecode counts as its source.
    """
    _install()
    found = _imported()
    _records.append(found)
    try:
        yield found
    finally:
        _records.remove(found)
    for path, stamp in _imported().items():
        found.setdefault(path, stamp)


def below(folder: str) -> Iterator[tuple[str, Stamp]]:
    """Yield the stamps of a folder and of everything in it, read or not, except bytecode and hidden files."""
    for top, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != BYTECODE and not name.startswith(".")]
        for path in (top, *(f"{top}/{name}" for name in files if not name.startswith("."))):
            yield path, _stamp(path)


def surroundings() -> list[object]:
    """Return which Python this is, where it finds vpatch and overlays, and the variables that they may heed."""
    variables = sorted(pair for pair in os.environ.items() if pair[0].startswith(("PYTHON", "VLLM", "VPATCH")))
    return [sys.executable, sys.version, list(sys.flags), sys.path, os.path.dirname(__file__), variables]  # noqa: PTH120


def unchanged(stamps: Mapping[str, Stamp]) -> bool:
    """Whether everything that `opened` has stamped is as it was."""
    return all(_stamp(path) == was for path, was in stamps.items())


@cache
def _install() -> None:
    sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[object, ...]) -> None:  # pragma: no cover - Python traces no audit hook
    if not _records or not (event == "open" or event in _LISTED):
        return
    records, _records[:] = _records[:], []  # what the stamp itself lists does not count
    try:
        if path := _read(arguments):
            for record in records:
                if path not in record:
                    record[path] = _stamp(path)
    finally:
        _records[:] = records


def _read(arguments: tuple[object, ...]) -> str:  # pragma: no cover - only the hook calls it
    """Return the absolute path of what an event reads; "" if it is written, a descriptor, or of the system."""
    path, *more = arguments
    written = any(isinstance(flags, int) and flags & (os.O_ACCMODE | os.O_CREAT) for flags in more)
    if written or not isinstance(path, str | bytes | os.PathLike | None):
        return ""
    name = os.path.abspath(os.fsdecode(path or "."))  # noqa: PTH100 - links stay
    # `pkgutil` lists each folder below a package, also the one that Python writes bytecode to.
    return "" if name.startswith(_SYSTEM) or name.endswith(f"/{BYTECODE}") else _source(name)


def _source(path: str) -> str:
    """Return the source of bytecode; other paths as they are."""
    with suppress(ValueError, NotImplementedError):
        if os.path.basename(os.path.dirname(path)) == BYTECODE:  # noqa: PTH119, PTH120
            return source_from_cache(path)
    return path


def _imported() -> dict[str, Stamp]:
    """Return the stamps of `sys.path`, and of each imported module that is not Python's own, with its folders."""
    paths = dict.fromkeys(filter(None, sys.path))
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in sys.stdlib_module_names:
            own = getattr(module, "__dict__", {})  # not the attributes: some modules import others to answer
            places = [own.get("__file__"), *(own.get("__path__") or ())]
            paths.update(dict.fromkeys(place for place in places if place and isinstance(place, str)))
    return {path: _stamp(path) for path in map(_source, paths)}


def _stamp(path: str) -> Stamp:
    """Return the stamp of a file, or the names in a folder.

    A folder's own times do not count: tests, coverage and Python's bytecode write to folders of code all the time.
    """
    try:
        of = os.stat(path)  # noqa: PTH116 - of hundreds: a Path takes longer than the call
        if stat.S_ISDIR(of.st_mode):
            return [[name] for name in sorted(os.listdir(path)) if name != BYTECODE and not name.startswith(".")]  # noqa: PTH208
        return [["", of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns]]
    except (OSError, ValueError):
        return []
