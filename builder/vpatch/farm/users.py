"""Which processes run from a farm: those whose receipt names it, that have its manifest open, or it on PYTHONPATH.

Files are compared by device and number: a container may have mounted the farms elsewhere, and a path may have links.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from vpatch.guest.vpatch_receipt import MANIFEST
from vpatch.processes import Process, running
from vpatch.processes.inside import Files, answered
from vpatch.processes.servers import identity, receipt_of

NAME = re.compile("[0-9a-f]{16}")  # of a farm's folder

_File = tuple[int, int]


def users(farms: Sequence[Path]) -> Mapping[Path, tuple[int, ...]]:
    """Return the ids of the processes that run from each farm, as far as this user may see. It needs /proc."""
    known = {file: farm for farm in farms for place in (farm, farm / MANIFEST) for file in _file(place)}
    found: dict[Path, list[int]] = {}
    for process in running():
        runs = {known[file] for file in (*_imported(process), *_held(process)) if file in known}
        for farm in runs:
            found.setdefault(farm, []).append(process.id)
    return {farm: tuple(ids) for farm, ids in found.items()}


def _imported(process: Process) -> Iterator[_File]:
    """Yield what may be farms on PYTHONPATH of a process; a title that it gave itself may have destroyed it."""
    with suppress(OSError):  # it has ended, or is another user's
        for entry in os.fsdecode(process.variable("PYTHONPATH") or b"").split(os.pathsep):
            yield from _seen(process, entry)


def _held(process: Process) -> Iterator[_File]:
    """Yield the farm of a process's receipt, and the manifests that it has open, as older receipts did."""
    with suppress(OSError):  # as above
        if receipt := receipt_of(process):
            yield from _seen(process, receipt.farm or "")
        for descriptor, name in process.opened():
            if name.endswith(f"/{MANIFEST}"):
                device, number = answered(process, process.user, partial(_opened, str(descriptor)))
                yield device, number


def _seen(process: Process, place: str) -> Iterator[_File]:
    if NAME.fullmatch(place.rpartition("/")[2]):
        with suppress(OSError):
            yield identity(process, place)


def _opened(descriptor: str, _: Files) -> _File:
    of = os.stat(descriptor)  # noqa: PTH116 - a descriptor's name need not be a path
    return of.st_dev, of.st_ino


def _file(path: Path) -> Iterator[_File]:
    with suppress(OSError):
        of = path.stat()
        yield of.st_dev, of.st_ino
