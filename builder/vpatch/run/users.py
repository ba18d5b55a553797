"""Which processes run from a farm: those whose receipt names it, that have its manifest open, or it on PYTHONPATH.

Files are compared by device and number: a container may have mounted the farms elsewhere, and a path may have links. If
this user may not compare them, the name of the farm counts, since none is removed that a process may run from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from vpatch.guest.vpatch_receipt import MANIFEST
from vpatch.processes import Process, running

NAME = re.compile("[0-9a-f]{16}")  # of a farm's folder

_File = tuple[int, int] | str  # device and number, or a name
_Gone = (FileNotFoundError, NotADirectoryError, ProcessLookupError)


def users(farms: Sequence[Path]) -> Mapping[Path, tuple[int, ...]]:
    """Return the ids of the processes that run from each farm, as far as this user may see. It needs /proc."""
    known = dict[_File, Path]({farm.name: farm for farm in farms})
    for farm in farms:
        for place in (farm, farm / MANIFEST):
            with suppress(OSError):
                known[_file(place)] = farm
    found: dict[Path, list[int]] = {}
    for process in running():
        for farm in {known[file] for file in _used(process) if file in known}:
            found.setdefault(farm, []).append(process.id)
    return {farm: tuple(ids) for farm, ids in found.items()}


def _used(process: Process) -> Iterator[_File]:
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
