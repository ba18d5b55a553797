"""Releases on the package index: which of them are rows, and what is read of each, through the cache."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256

from packaging.utils import canonicalize_name
from packaging.version import Version

from vpatch.errors import Failure, Problem
from vpatch.matrix.cache import LISTINGS, Cache, DamagedError, is_hash
from vpatch.matrix.verdicts import Tree
from vpatch.matrix.wheel import Picked, pick
from vpatch.matrix.wheel_cache import Shelf
from vpatch.release.index import PROJECT, Offer, Wheel, find_wheels, listings
from vpatch.release.wheel import open_wheel, sums_in

OLDEST = Version("0.18.0")  # the first release that overlays are made for


@dataclass(frozen=True)
class Release:
    """One release on an index, read through `cache`, or past any cache where that is None."""

    project: str
    wheel: Wheel
    cache: Cache | None = field(repr=False)

    @property
    def name(self) -> str:
        """Its version, after the project's name where that is not vLLM's own."""
        return self.wheel.version if self.project == PROJECT else f"{self.project} {self.wheel.version}"

    def read(self, files: Collection[str]) -> Tree:
        """Read these files; where all of them are in the cache, no server is asked.

        Raises:
            Failure: a server fails, the wheel is not what it should be, or the cache cannot be used.
        """
        digest = self.wheel.sha256
        if self.cache is None or digest is None or not is_hash(digest):
            picked, received, size = self._fetched(files)
            return self._tree(picked.files, received, size)
        shelf = Shelf(self.cache, digest, self.wheel.filename)
        known = shelf.record()
        if known is None:
            picked, received, size = self._fetched(files)
            shelf.keep(picked.record, size, picked.files)
            return self._tree(picked.files, received, size, shelf.notes)
        record, size = known
        sums = sums_in(record)
        held = shelf.files(files, sums)
        missing = {*files} & sums.keys() - held.keys()
        if not missing:
            return self._tree(held, 0, size, shelf.notes)
        picked, received, size = self._fetched(missing)
        if picked.record != record:
            why = "it is not the one that came before: if that one was wrong, `vpatch cache --clear` forgets it"
            raise Failure(Problem("wrong bytes", f"{picked.path} of {self.wheel.filename}", why))
        shelf.keep(record, size, picked.files)
        return self._tree({**held, **picked.files}, received, size, shelf.notes)

    def _fetched(self, files: Collection[str]) -> tuple[Picked, int, int]:
        """Give what the wheel has, the bytes received for it, and the wheel's size."""
        with open_wheel(self.wheel) as file:
            return pick(file, files), file.received, file.size

    def _tree(self, files: Mapping[str, bytes], received: int, size: int, notes: Sequence[str] = ()) -> Tree:
        return Tree(files, self.wheel.version, self.wheel.filename, received, size, tuple(notes))


@dataclass(frozen=True)
class Listing:
    """Releases, oldest first, and what is to be said of where they come from."""

    releases: tuple[Release, ...]
    notes: tuple[str, ...] = ()


def releases_of(project: str, versions: Sequence[str], cache: Cache | None) -> Listing:
    """Give these releases of a project.

    With no `versions`, every final release since the first that overlays are made for, less the yanked ones; of a
    project that has nothing but pre-releases, every one of these. An index that gives no answer at all is taken to
    say what it said the last time, if the cache has that; the notes then say so.

    Raises:
        Failure: no such project or releases, all of them at once; an index that fails; a cache that cannot be used.
    """
    memory = None if cache is None else _Memory(cache)
    told = memory.told if memory else []
    try:
        offers = find_wheels(versions, project=project, memory=memory) if versions else _default(project, memory)
    except Failure as failure:
        raise Failure(*failure.problems, *told) from failure  # a release may be newer than what is remembered
    name = canonicalize_name(project)
    return Listing(tuple(Release(name, offer.wheel, cache) for offer in offers), tuple(map(str, told)))


def _default(project: str, memory: _Memory | None) -> list[Offer]:
    known: dict[Version, Offer] = {}
    for offers in listings(project, memory=memory):
        known = offers | known
    there = sorted(version for version, offer in known.items() if not offer.yanked)
    final = [version for version in there if not version.is_prerelease]
    chosen = [version for version in final or there if version >= OLDEST]
    if not chosen:
        why = f"none since {OLDEST} that is {'final and ' if final else ''}not yanked"
        raise Failure(Problem("no releases", project, why))
    return [known[version] for version in chosen]


@dataclass(frozen=True)
class _Memory:
    """What indexes said the last time, in the cache; `told` says which of them were taken from there."""

    cache: Cache
    told: list[Problem] = field(default_factory=list)

    def keep(self, index: str, project: str, offers: Iterable[Offer]) -> None:
        date = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        self.cache.put_note(LISTINGS, _key(index, project), {"date": date, "offers": list(map(asdict, offers))})

    def recall(self, index: str, project: str, problem: Problem) -> list[Offer] | None:
        try:
            note = self.cache.note(LISTINGS, _key(index, project))
        except DamagedError:
            self.told.append(
                Problem("damaged in the cache", problem.where, f"the list of its {project} releases is gone")
            )
            return None
        if note is None:
            return None
        self.told.append(Problem("offline", problem.where, f"{problem.cause}; {project} releases as of {note['date']}"))
        return [Offer(Wheel(**offer["wheel"]), yanked=offer["yanked"]) for offer in note["offers"]]


def _key(index: str, project: str) -> str:
    return sha256(f"{project}\n{index}".encode()).hexdigest()
