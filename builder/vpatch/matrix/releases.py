"""vLLMs in wheels: releases on the package index, read through the cache, and wheels on disk."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from packaging.utils import canonicalize_name
from packaging.version import Version

from vpatch.core.listing import among, is_folder, pack, unpack
from vpatch.errors import Failure, Problem, naming
from vpatch.guest.record import Record, parse
from vpatch.matrix.cache import LISTINGS, SHA256, WHEELS, Cache, Damaged
from vpatch.matrix.verdicts import FilesRead
from vpatch.release.index import PROJECT, Ask, NoAnswerError, Offer, Wheel, ask_index, find_wheels, listings
from vpatch.release.wheel import is_record, open_wheel, read_members

if TYPE_CHECKING:
    from requests import Session

    from vpatch.net.ranges import RemoteFile

Folders = dict[str, Sequence[str] | None]  # the names in folders of a wheel; None: it has no such folder

OLDEST = Version("0.18.0")  # the first release that overlays are made for


@dataclass(frozen=True)
class IndexRelease:
    """One release on an index, read through `cache` unless that is None."""

    project: str
    wheel: Wheel
    cache: Cache | None = field(repr=False)

    @property
    def name(self) -> str:
        """The version, after the project's name if that is not vLLM's own."""
        return self.wheel.version if self.project == PROJECT else f"{self.project} {self.wheel.version}"

    def read(self, files: Collection[str]) -> FilesRead:
        """Read those of these files that exist, without any request if all are in the cache.

        Listings are kept in the cache's note: they come from the wheel's own directory, not from its RECORD.
        """
        cache, wheel, digest = self.cache, self.wheel.filename, self.wheel.sha256 or ""
        if cache is None or not SHA256.fullmatch(digest):
            return self._fetch(files)[0]
        notes: list[str] = []

        def damaged(name: str) -> Damaged:
            return partial(notes.append, f"damaged in the cache, fetched again: {name} of {wheel}")

        note = cache.note(WHEELS, digest, damaged("RECORD"))
        record = cache.get(note["record"], damaged("RECORD")) if note else None
        folders: Folders = dict(note.get("folders", {})) if note and record is not None else {}
        held, missing = ({}, files) if record is None else _held(cache, files, _parsed(record), folders, damaged)
        if note and record is not None and not missing:
            return FilesRead(held, self.wheel.version, wheel, 0, note["size"], tuple(notes))
        tree, members = self._fetch(missing)
        if record is not None and members.record != record:
            why = "it is not the one that came before: if that one was wrong, `vpatch cache --clear` forgets it"
            raise Failure(Problem("wrong bytes", f"{members.path} of {wheel}", why))
        for name in sorted({*missing, *tree.files}):
            data = tree.files.get(name)
            if is_folder(name):
                folders[name] = None if data is None else unpack(data)
            elif data is not None:
                cache.put(data)
        kept = {"record": cache.put(members.record), "file": wheel, "size": tree.size, "folders": folders}
        cache.put_note(WHEELS, digest, kept)  # last, so that what it names is there
        return replace(tree, files={**held, **tree.files}, notes=tuple(notes))

    def holds(self, files: Collection[str]) -> bool:
        """Whether the cache has those of these files that exist, so that to read them needs no request."""
        digest = self.wheel.sha256 or ""
        if self.cache is None or not SHA256.fullmatch(digest):
            return False
        note = self.cache.note(WHEELS, digest, _no_matter)
        record = self.cache.get(note["record"], _no_matter) if note else None
        if note is None or record is None:
            return False
        folders = dict(note.get("folders", {}))
        return not _held(self.cache, files, _parsed(record), folders, lambda _: _no_matter)[1]

    def _fetch(self, files: Collection[str]) -> tuple[FilesRead, _Members]:
        with open_wheel(self.wheel) as file:
            members = _read_wheel(file, files)
            return FilesRead(members.files, self.wheel.version, self.wheel.filename, file.received, file.size), members


@lru_cache(maxsize=2)
def _parsed(record: bytes) -> Record:
    """Parse a RECORD; of one release, files are asked for in several steps."""
    return parse(record)


def _no_matter() -> None:
    """Say nothing of damage: who reads the files does."""


def _held(
    cache: Cache, files: Collection[str], record: Record, folders: Folders, damaged: Callable[[str], Damaged]
) -> tuple[dict[str, bytes], set[str]]:
    """Return those of these files and listings that the cache has, and the names of those that it lacks."""
    held = {name: pack(names) for name in files if (names := folders.get(name)) is not None}
    rows = {name: row for name in files if (row := record.row(name))}
    held |= {name: record.serialize() for name in rows if is_record(name)}  # it has no hash of itself
    for name in sorted(rows.keys() - held.keys()):
        _, hash_, size = rows[name].fields
        key = _hexadecimal(hash_)
        data = cache.get(key, damaged(name)) if key else None
        if data is not None and str(len(data)) == size:
            held[name] = data
    unknown = {name for name in files if is_folder(name)} - folders.keys()
    return held, (rows.keys() - held.keys()) | unknown


def _hexadecimal(hash_: str) -> str | None:
    """Convert a hash in RECORD, `sha256=<base64>`, to the cache's hexadecimal; None for any other hash."""
    algorithm, _, digest = hash_.partition("=")
    try:
        raw = urlsafe_b64decode(f"{digest}=")
    except ValueError:
        return None
    return raw.hex() if algorithm == "sha256" and len(raw) == 32 else None


@dataclass(frozen=True)
class WheelFile:
    """A wheel on disk."""

    path: Path

    @property
    def name(self) -> str:
        """The file name."""
        return self.path.name

    def read(self, files: Collection[str]) -> FilesRead:
        """Read those of these files that exist."""
        with naming("cannot read", str(self.path)), self.path.open("rb") as file:
            members = _read_wheel(file, files)
        version = members.path.partition(".dist-info/")[0].partition("-")[2]
        return FilesRead(members.files, version, str(self.path))


class _Members(NamedTuple):
    path: str  # of RECORD
    record: bytes
    files: Mapping[str, bytes]


def _read_wheel(file: RemoteFile | BinaryIO, wanted: Collection[str]) -> _Members:
    """Read those of the `wanted` files, and listings of folders, that a wheel has. Each problem names the wheel.

    RECORD must list all its code, and no wanted file that is not there: from then on, RECORD alone says what it has.
    """
    wheel, names = Path(file.name).name, set[str]()

    def chosen(name: str) -> bool:
        names.add(name)
        return name in wanted or is_record(name)

    try:
        found = {member.name: member.data for member in read_members(file, chosen)}
        (path,) = filter(is_record, found)
        record = found.pop(path)
        listed = {row.path for row in parse(record).rows}
        unlisted = sorted(name for name in names - listed if name.endswith(".py"))
        absent = sorted((listed & {*wanted}) - names)
        if unlisted or absent:
            causes = dict.fromkeys(unlisted, "RECORD does not list it")
            causes |= dict.fromkeys(absent, "RECORD lists it, and the wheel has no such file")
            raise Failure(*(Problem("wrong bytes", name, cause) for name, cause in causes.items()))
    except Failure as failure:
        problems = (p if wheel in p.where else replace(p, where=f"{p.where} of {wheel}") for p in failure.problems)
        raise Failure(*problems) from failure
    found |= {folder: data for folder in filter(is_folder, wanted) if (data := among(names, folder)) is not None}
    found |= {path: record} if path in wanted else {}
    return _Members(path, record, found)


class Listing(NamedTuple):
    """Releases, oldest first, and notes on where the list comes from."""

    releases: tuple[IndexRelease, ...]
    notes: tuple[str, ...] = ()


def releases_of(project: str, versions: Sequence[str], cache: Cache | None) -> Listing:
    """Find these releases of a project.

    Without `versions`, find every final release since the first that overlays are made for, except the yanked ones; of
    a project that has only pre-releases, all of these. For an index that does not answer, the cache's record of its
    last answer is used, and the notes say so. A project or releases that do not exist are one `Failure`.
    """
    notes: list[Problem] = []
    ask = ask_index if cache is None else partial(_ask_or_remember, cache, notes)
    try:
        offers = find_wheels(versions, project=project, ask=ask) if versions else _default(project, ask)
    except Failure as failure:
        # If the list is only remembered, the release may be newer than it.
        kind = Failure if notes else type(failure)
        raise kind(*failure.problems, *notes) from failure
    name = canonicalize_name(project)
    return Listing(tuple(IndexRelease(name, offer.wheel, cache) for offer in offers), tuple(map(str, notes)))


def _default(project: str, ask: Ask) -> Sequence[Offer]:
    known: dict[Version, Offer] = {}
    for offers in listings(project, ask=ask):
        known = offers | known
    offered = sorted(version for version, offer in known.items() if not offer.yanked)
    final = [version for version in offered if not version.is_prerelease]
    chosen = [version for version in final or offered if version >= OLDEST]
    if not chosen:
        why = f"none since {OLDEST} that is {'final and ' if final else ''}not yanked"
        raise Failure(Problem("no releases", project, why))
    return [known[version] for version in chosen]


def _ask_or_remember(cache: Cache, notes: list[Problem], session: Session, index: str, project: str) -> Iterable[Offer]:
    """Ask an index; answer from the cache, and note it, if the index does not."""
    key = sha256(f"{project}\n{index}".encode()).hexdigest()
    try:
        offers = ask_index(session, index, project)
    except NoAnswerError as error:
        (problem,) = error.problems
        damage = Problem("damaged in the cache", problem.where, f"the list of its {project} releases is gone")
        note = cache.note(LISTINGS, key, partial(notes.append, damage))
        if note is None:
            raise
        why = f"{problem.cause}; {project} releases as of {note['date']}"
        notes.append(Problem("offline", problem.where, why))
        return [Offer(Wheel(**offer["wheel"]), yanked=offer["yanked"]) for offer in note["offers"]]
    date = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    cache.put_note(LISTINGS, key, {"date": date, "offers": list(map(asdict, offers))})
    return offers
