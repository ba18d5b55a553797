"""Which farms there are, which ones processes run from, and which ones go when there are many.

A farm goes only if it is one of too many, was not started from for a month, and no process of this machine runs from
it. So a server that this one does not see, on another machine with the same home or in another container, keeps its
farm that long.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path

from vpatch import locking
from vpatch.errors import naming
from vpatch.foreign import parse_json, read_regular
from vpatch.guest.vpatch_receipt import MANIFEST
from vpatch.processes import Process, running, there_is_proc

MOST = 16  # farms: more than a user alternates between, and few to look through
MOST_BYTES = 64_000_000  # a farm takes about one megabyte, nearly all of it changed files and their bytecode
IDLE_S = 30 * 86400.0

FARMS = "run"  # the folder of the farms in the user's cache
STAGING = ".new-"
MEMOS = "memos"

_JUST_NOW_S = 60.0  # longer than from a start's look at its farm to its command

_STARTING = "a command is being started with one; try again"
_UNLOCKED = "the file system has no locks, and one was started from less than a minute ago; try again later"
_UNSEEN = "only Linux shows which processes run from them; remove the folder yourself when none does"


@dataclass(frozen=True)
class Farm:
    """A farm of the cache.

    Attributes:
        folder: its folder.
        digest: of its overlays; "" if its manifest cannot be read.
        bytes: the size of its files; links count nothing.
        used: when a command was last started from it, in seconds since 1970.
        processes: the ids of the processes that run from it, as far as this user and system may see.
    """

    folder: Path
    digest: str
    bytes: int
    used: float
    processes: tuple[int, ...]


@dataclass(frozen=True)
class Cleared:
    """What became of the farms of a folder.

    Attributes:
        removed: those that are gone.
        left: those that are not.
        obstacle: why some are left that no process is seen to run from; "" if there are none.
    """

    removed: tuple[Farm, ...]
    left: tuple[Farm, ...]
    obstacle: str


def farms(store: Path) -> list[Farm]:
    """List the farms of a folder, the one that was used last first.

    Raises:
        Failure: the folder cannot be read.
    """
    with naming("cannot read the farms", str(store)):
        folders = [path for path in store.iterdir() if NAME.fullmatch(path.name)] if store.is_dir() else []
    runs = users(folders) if folders and there_is_proc() else {}
    found = []
    for folder in folders:
        with suppress(FileNotFoundError):  # another run removes it
            used = folder.stat().st_mtime
            found.append(Farm(folder, _digest(folder), _size(folder), used, runs.get(folder, ())))
    return sorted(found, key=lambda farm: -farm.used)


def touch(farm: Path) -> None:
    """Note that a command is started from a farm. In a cache that is mounted read-only, nothing is removed either."""
    with suppress(OSError):
        os.utime(farm)


def prune(store: Path) -> list[Farm]:
    """Remove the farms that are too many when there is one more, and old; return them.

    None is removed while another command is being started, or where processes cannot be seen.
    """
    removed, size = list[Farm](), 0
    with alone(store) as held:
        if held is Held.BUSY:
            return removed
        for number, farm in enumerate(farms(store), 1):
            size += farm.bytes
            too_much = number >= MOST or size > MOST_BYTES
            unused = there_is_proc() and not farm.processes and farm.used < time.time() - IDLE_S
            if too_much and unused:
                with suppress(OSError):  # a later run tries again
                    remove(farm.folder)
                    removed.append(farm)
        memos = sorted((store / MEMOS).glob("*.json"), key=_used, reverse=True)
        for memo in memos[MOST:]:
            with suppress(OSError):  # as above
                memo.unlink()
    return removed


def clear(store: Path) -> Cleared:
    """Remove the farms that no process runs from, and what vpatch remembers of plans.

    Raises:
        Failure: the folder cannot be read, or a farm cannot be removed.
    """
    with alone(store) as held:
        found = farms(store)
        if held is Held.BUSY:
            return Cleared((), tuple(found), _STARTING)
        if found and not there_is_proc():
            return Cleared((), tuple(found), _UNSEEN)
        recent = time.time() - _JUST_NOW_S if held is Held.UNKNOWN else float("inf")
        going = [farm for farm in found if not farm.processes and farm.used < recent]
        with naming("cannot remove the farms", str(store)):
            for farm in going:
                remove(farm.folder)
            for memo in (store / MEMOS).glob("*.json"):
                memo.unlink(missing_ok=True)
    left = tuple(farm for farm in found if farm not in going)
    return Cleared(tuple(going), left, "" if all(farm.processes for farm in left) else _UNLOCKED)


def remove(farm: Path) -> None:
    """Remove a farm, which no new command finds any longer from the first step on."""
    aside = Path(tempfile.mkdtemp(prefix=STAGING, dir=farm.parent))
    with suppress(FileNotFoundError):  # another run was quicker
        farm.rename(aside / farm.name)
    shutil.rmtree(aside)


def _digest(folder: Path) -> str:
    try:
        return str(parse_json(read_regular(folder / MANIFEST))["digest"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _size(folder: Path) -> int:
    total = 0
    for file in (Path(top, name) for top, _, names in os.walk(folder) for name in names):
        with suppress(FileNotFoundError):  # bytecode that Python has just moved into place
            total += 0 if file.is_symlink() else file.lstat().st_size
    return total


def _used(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


class Held(Enum):
    """Whether a command is being started with a farm of the folder, as far as its lock shows."""

    ALONE = auto()
    BUSY = auto()
    UNKNOWN = auto()  # the file system has no locks


def share(store: Path) -> int | None:
    """Keep farms from being removed until the descriptor is closed, as it is when this process becomes the command.

    Then PYTHONPATH in the environment of the process shows that the farm is in use. While farms are removed, it waits.

    Args:
        store: the folder of the farms; it may be mounted read-only.

    Returns:
        The descriptor; None if the file system has no locks.
    """
    return _locked(store, shared=True)


@contextmanager
def alone(store: Path) -> Iterator[Held]:
    """Lock the folder against starts while farms are removed; do not wait for a start that has begun."""
    try:
        lock = _locked(store, patience=0)
    except BlockingIOError:
        yield Held.BUSY
        return
    try:
        yield Held.UNKNOWN if lock is None else Held.ALONE
    finally:
        if lock is not None:
            os.close(lock)


def _locked(store: Path, *, shared: bool = False, patience: float | None = None) -> int | None:
    try:
        lock = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        locking.lock(lock, shared=shared, patience=patience)
    except BaseException as error:
        os.close(lock)
        if isinstance(error, OSError) and not isinstance(error, BlockingIOError):
            return None
        raise
    return lock


NAME = re.compile("[0-9a-f]{16}")  # of a farm's folder

_File = tuple[int, int] | str  # device and number, or a name
_Gone = (FileNotFoundError, NotADirectoryError, ProcessLookupError)


def users(farms: Sequence[Path]) -> Mapping[Path, tuple[int, ...]]:
    """Return the ids of the processes that run from each farm, as far as this user may see. It needs /proc.

    Their receipt names the farm, they have its manifest open, or it on PYTHONPATH. Files are compared by device and
    number: a container may have mounted the farms elsewhere, and a path may have links. If this user may not compare
    them, the name of the farm counts, since none is removed that a process may run from.
    """
    known = dict[_File, Path]({farm.name: farm for farm in farms})
    for farm in farms:
        for place in (farm, farm / MANIFEST):
            with suppress(OSError):
                known[_file(place)] = farm
    found: dict[Path, list[int]] = {}
    for process in running():
        for farm in {known[file] for file in _of_process(process) if file in known}:
            found.setdefault(farm, []).append(process.id)
    return {farm: tuple(ids) for farm, ids in found.items()}


def _of_process(process: Process) -> Iterator[_File]:
    """Yield what may be farms of a process; nothing if it has ended, or is another user's."""
    from vpatch.processes.servers import identity, receipt_of

    places = []
    with suppress(OSError):  # a title that the process gave itself may have destroyed it
        places += os.fsdecode(process.variable("PYTHONPATH") or b"").split(os.pathsep)
    with suppress(OSError):
        if receipt := receipt_of(process):
            places.append(receipt.farm or "")
    for place in places:
        if NAME.fullmatch(name := place.rpartition("/")[2]):
            yield from _compared(name, partial(identity, process, place))
    with suppress(OSError):  # as receipts of an older vpatch did
        for descriptor, name in process.opened():
            if name.endswith(f"/{MANIFEST}"):
                yield from _compared(Path(name).parent.name, partial(_opened, process, str(descriptor)))


def _compared(name: str, ask: Callable[[], tuple[int, int]]) -> Iterator[_File]:
    try:
        yield ask()
    except _Gone:
        return
    except OSError:
        yield name


def _opened(process: Process, descriptor: str) -> tuple[int, int]:
    from vpatch.processes.inside import answered  # here and above: `vpatch run` rarely asks

    device, number = answered(process, process.user, lambda _: _file(Path(descriptor)))
    return device, number


def _file(path: Path) -> tuple[int, int]:
    of = path.stat()
    return of.st_dev, of.st_ino
