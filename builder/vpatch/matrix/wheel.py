"""What is read of a wheel, wherever it lies: wanted members, each as RECORD says, and RECORD itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vpatch.errors import Failure, Problem, naming
from vpatch.matrix.verdicts import Tree
from vpatch.release.wheel import Sums, is_record, read_members, sums_in

if TYPE_CHECKING:
    from vpatch.net.ranges import RemoteFile


@dataclass(frozen=True)
class Picked:
    """RECORD's path and bytes, and those of the wanted files that the wheel has."""

    path: str
    record: bytes
    files: Mapping[str, bytes]

    @property
    def sums(self) -> Sums:
        """What RECORD says."""
        return sums_in(self.record)


def pick(file: RemoteFile | BinaryIO, wanted: Collection[str]) -> Picked:
    """Read those of the `wanted` files that a wheel has.

    RECORD is held to list all of the wheel's code, and none of `wanted` that is not there: so from then on, it alone
    says what the wheel has.

    Raises:
        Failure: the wheel is damaged, or is not what RECORD says. Each problem names the wheel.
    """
    wheel = Path(file.name).name
    try:
        return _picked(file, frozenset(wanted))
    except Failure as failure:
        problems = (p if wheel in p.where else replace(p, where=f"{p.where} of {wheel}") for p in failure.problems)
        raise Failure(*problems) from failure


def _picked(file: RemoteFile | BinaryIO, wanted: frozenset[str]) -> Picked:
    names: set[str] = set()

    def chosen(name: str) -> bool:
        names.add(name)
        return name in wanted or is_record(name)

    found = {member.name: member.data for member in read_members(file, chosen)}
    (path,) = filter(is_record, found)
    picked = Picked(path, found.pop(path), found)
    listed = picked.sums
    unlisted = sorted(name for name in names - listed.keys() if name.endswith(".py"))
    absent = sorted((listed.keys() & wanted) - names)
    if unlisted or absent:
        raise Failure(
            *(Problem("wrong bytes", name, "RECORD does not list it") for name in unlisted),
            *(Problem("wrong bytes", name, "RECORD lists it, and the wheel has no such file") for name in absent),
        )
    return picked


@dataclass(frozen=True)
class WheelFile:
    """A wheel on disk."""

    path: Path

    @property
    def name(self) -> str:
        """Its file name."""
        return self.path.name

    def read(self, files: Collection[str]) -> Tree:
        """Read these files.

        Raises:
            Failure: it cannot be read, or is not what its RECORD says.
        """
        with naming("cannot read", str(self.path)), self.path.open("rb") as file:
            picked = pick(file, files)
        version = picked.path.partition(".dist-info/")[0].partition("-")[2]
        return Tree(picked.files, version, str(self.path))
