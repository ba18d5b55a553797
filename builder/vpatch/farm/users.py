"""Which processes run from a farm: those that hold its manifest as a receipt, or have it on PYTHONPATH.

Files are compared by device and number: a container may have mounted the farms elsewhere, and a path may have links.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vpatch.guest.vpatch_receipt import MANIFEST
from vpatch.processes import Process, running

NAME = re.compile("[0-9a-f]{16}")  # of a farm's folder

_File = tuple[int, int]


def users(farms: Sequence[Path]) -> Mapping[Path, tuple[int, ...]]:
    """Return the ids of the processes that run from each farm, as far as this user may see. It needs /proc."""
    known = {file: farm for farm in farms for place in (farm, farm / MANIFEST) for file in _file(str(place))}
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
            if NAME.fullmatch(entry.rpartition("/")[2]):
                yield from _file(f"{process.folder}/root{entry}")


def _held(process: Process) -> Iterator[_File]:
    """Yield the manifests that a process holds open."""
    with suppress(OSError):  # as above
        for descriptor, name in process.opened():
            if name.endswith(f"/{MANIFEST}"):
                yield from _file(str(descriptor))


def _file(path: str) -> Iterator[_File]:
    with suppress(OSError):
        of = os.stat(path)  # noqa: PTH116 - a descriptor's name need not be a path
        yield of.st_dev, of.st_ino
