"""Which farms there are, which ones processes run from, and which ones go when there are many.

A farm goes only if it is one of too many, was not started from for a month, and no process of this machine runs from
it. So a server on another machine with the same home, or in a container, keeps its farm that long.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vpatch.errors import naming
from vpatch.farm.content import MANIFEST

MOST = 16  # farms: more than a user alternates between, and few to look through
MOST_BYTES = 64_000_000  # a farm takes about one megabyte, nearly all of it changed files and their bytecode
IDLE_S = 30 * 86400.0

FARMS = "run"  # the folder of the farms in the user's cache
STAGING = ".new-"
MEMOS = "memos"

_NAME = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class Farm:
    """A farm of the cache.

    Attributes:
        folder: its folder.
        digest: of its overlays; "" if its manifest cannot be read.
        bytes: the size of its files; links count nothing.
        used: when a command was last started from it, in seconds since 1970.
        processes: the ids of the processes that run from it, as far as this user may see.
    """

    folder: Path
    digest: str
    bytes: int
    used: float
    processes: tuple[int, ...]


def farms(store: Path) -> list[Farm]:
    """List the farms of a folder, the one that was used last first.

    Raises:
        Failure: the folder cannot be read.
    """
    with naming("cannot read the farms", str(store)):
        folders = [path for path in store.iterdir() if _NAME.fullmatch(path.name)] if store.is_dir() else []
    runs = _processes(folders) if folders else {}
    found = []
    for folder in folders:
        with suppress(FileNotFoundError):  # another run removes it
            used = folder.stat().st_mtime
            found.append(Farm(folder, _digest(folder), _size(folder), used, tuple(runs.get(folder, ()))))
    return sorted(found, key=lambda farm: -farm.used)


def touch(farm: Path) -> None:
    """Note that a command is started from a farm. In a cache that is mounted read-only, nothing is removed either."""
    with suppress(OSError):
        os.utime(farm)


def prune(store: Path, keep: Path) -> list[Farm]:
    """Remove the farms that are too many, and old; return them.

    Args:
        store: the folder of the farms.
        keep: the one that was just made.
    """
    removed, size = [], 0
    for number, farm in enumerate(farms(store)):
        size += farm.bytes
        too_much = number >= MOST or size > MOST_BYTES
        if too_much and farm.folder != keep and not farm.processes and farm.used < time.time() - IDLE_S:
            with suppress(OSError):  # a later run tries again
                remove(farm.folder)
                removed.append(farm)
    memos = sorted((store / MEMOS).glob("*.json"), key=_used, reverse=True)
    for memo in memos[MOST:]:
        with suppress(OSError):  # as above
            memo.unlink()
    return removed


def clear(found: Sequence[Farm], store: Path) -> list[Farm]:
    """Remove farms that no process runs from, and what vpatch remembers of plans; return the removed ones.

    Raises:
        Failure: one cannot be removed.
    """
    removed = []
    with naming("cannot remove the farms", str(store)):
        for farm in found:
            if not farm.processes:
                remove(farm.folder)
                removed.append(farm)
        for memo in (store / MEMOS).glob("*.json"):
            memo.unlink(missing_ok=True)
    return removed


def remove(farm: Path) -> None:
    """Remove a farm, which no new command finds any longer from the first step on."""
    aside = Path(tempfile.mkdtemp(prefix=STAGING, dir=farm.parent))
    with suppress(FileNotFoundError):  # another run was quicker
        farm.rename(aside / farm.name)
    shutil.rmtree(aside)


def _processes(folders: Sequence[Path]) -> Mapping[Path, list[int]]:
    """Find the processes of each farm: they hold its manifest open, as the receipt does, or have it on PYTHONPATH."""
    manifests = {str(folder / MANIFEST): folder for folder in folders}
    paths = {os.fsencode(folder): folder for folder in folders}
    found: dict[Path, list[int]] = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        runs = {paths[entry] for entry in _path_of(process) if entry in paths}
        with suppress(OSError):  # it has ended, or is another user's
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    target = os.readlink(descriptor)  # noqa: PTH115 - of thousands
                    runs |= {manifests[target]} if target in manifests else set()
        for folder in runs:
            found.setdefault(folder, []).append(int(process.name))
    return {folder: sorted(ids) for folder, ids in found.items()}


def _path_of(process: Path) -> list[bytes]:
    """Return PYTHONPATH of a process; a title that it gave itself may have destroyed it."""
    with suppress(OSError):
        for variable in (process / "environ").read_bytes().split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name == b"PYTHONPATH":
                return value.split(os.fsencode(os.pathsep))
    return []


def _digest(folder: Path) -> str:
    try:
        return str(json.loads((folder / MANIFEST).read_bytes())["digest"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _size(folder: Path) -> int:
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                of = Path(top, name).lstat()
                total += 0 if Path(top, name).is_symlink() else of.st_size
    return total


def _used(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0
