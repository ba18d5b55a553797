"""The Python sources of a release: read from its wheel without downloading all of it, checked, put on disk.

The door to this package. Where the extra `vpatch[fetch]` is not installed, importing this module raises the
`Failure` that says so: import it where it is used.
"""

from __future__ import annotations

import base64
import csv
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vpatch.errors import Failure, Problem

try:
    from vpatch.release.index import Wheel, find_wheel, open_session, releases
    from vpatch.release.ranges import Progress, RemoteFile, cause, open_remote
except ModuleNotFoundError as error:
    raise Failure(Problem("cannot fetch", str(error.name), "not installed: pip install 'vpatch[fetch]'")) from error

__all__ = [
    "Fetched",
    "Member",
    "Progress",
    "Wheel",
    "fetch",
    "find_wheel",
    "open_wheel",
    "read_members",
    "releases",
]

# What zipfile raises for an archive that is damaged, encrypted or compressed in a way that it does not know.
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, csv.Error)


@dataclass(frozen=True)
class Fetched:
    """A release on disk: what came from which wheel, and how many of that wheel's bytes were read for it."""

    version: str
    wheel: str
    tree: Path
    files: int
    bytes_read: int
    wheel_bytes: int


@dataclass(frozen=True)
class Member:
    """A file of a wheel: its path as in site-packages, its checked bytes, its date in seconds since 1970."""

    name: str
    data: bytes
    modified: float


def fetch(version: str, target: Path, *, progress: Progress | None = None) -> Fetched:
    """Put the Python files and the dist-info of a vLLM release into `target`, a folder that is new or empty.

    Everything is written beside `target` and renamed at the end: `target` is complete or not there.

    Raises:
        Failure: no such release, an index or a server that fails, a file that is not what RECORD says, a
            target that is taken or cannot be written.
    """
    target = _free(target)
    wheel = find_wheel(version)
    with _staging(target) as staging, open_wheel(wheel, progress=progress) as file:
        files = 0
        for member in read_members(file, _is_source):
            with _writing(target / member.name):
                _write(staging / member.name, member)
            files += 1
        with _writing(target):
            staging.rename(target)  # an empty folder gives way
        return Fetched(wheel.version, wheel.filename, target, files, file.received, file.size)


@contextmanager
def open_wheel(wheel: Wheel, *, progress: Progress | None = None) -> Iterator[RemoteFile]:
    """Open a wheel where it lies, for `read_members`.

    Raises:
        Failure: its server fails, or what it sent as a whole has another hash than the index says.
    """
    with open_session() as session, open_remote(session, wheel.url, progress=progress) as file:
        if file.whole and wheel.sha256 and hashlib.file_digest(file, "sha256").hexdigest() != wheel.sha256:
            raise Failure(Problem("wrong bytes", file.name, "its sha256 is not the one on the index"))
        yield file


def read_members(file: RemoteFile, wanted: Callable[[str], bool]) -> Iterator[Member]:
    """Read the files of a wheel whose names are wanted, one at a time, each checked against RECORD.

    Raises:
        Failure: the wheel is damaged, a name leads out of the tree, or a file is not what RECORD says.
    """
    where = file.name
    try:
        with zipfile.ZipFile(file) as archive:
            record = _find_record(archive, where)
            chosen = [info for info in archive.infolist() if not info.is_dir() and wanted(info.filename)]
            _refuse(chosen)
            file.prefetch(_spans(archive, [*chosen, record]))
            where = record.filename
            sums = _sums(archive.read(record))
            for info in sorted(chosen, key=lambda one: one.header_offset):
                where = info.filename
                data = archive.read(info)
                if info is not record:
                    _check(where, data, sums)
                yield Member(where, data, _seconds(info))
    except DAMAGED as error:
        raise Failure(Problem("damaged wheel", where, cause(error))) from error


# --- the archive --------------------------------------------------------------------------------------------


def _is_source(name: str) -> bool:
    return name.endswith(".py") or name.partition("/")[0].endswith(".dist-info")


def _find_record(archive: zipfile.ZipFile, where: str) -> zipfile.ZipInfo:
    found = [info for info in archive.infolist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", info.filename)]
    if len(found) != 1:
        raise Failure(Problem("not a wheel", where, f"{len(found)} RECORD files in it, not one"))
    return found[0]


def _refuse(members: list[zipfile.ZipInfo]) -> None:
    """Refuse whatever would not become a plain file at its own place in the tree."""
    seen: set[str] = set()
    problems = []
    for info in members:
        name = info.orig_filename  # zipfile cuts `filename` at a null character
        parts = name.split("/")
        if "\\" in name or "\0" in name or {"", ".", ".."} & {*parts}:
            problems.append(Problem("unsafe name in wheel", repr(name), "it leads out of the tree"))
        elif stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
            problems.append(Problem("unsafe file in wheel", name, "a link or a special file"))
        elif name in seen:
            problems.append(Problem("unsafe name in wheel", name, "it is there twice"))
        seen.add(name)
    if problems:
        raise Failure(*problems)


def _spans(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> Iterator[tuple[int, int]]:
    """Give where each member lies: up to the next one, since only its local header knows its own length."""
    starts = sorted({info.header_offset for info in archive.infolist()})
    after = dict(zip(starts, [*starts[1:], archive.start_dir], strict=True))
    return ((info.header_offset, after[info.header_offset]) for info in members)


def _sums(record: bytes) -> dict[str, tuple[str, str]]:
    rows = csv.reader(record.decode("utf-8").splitlines())
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}  # path, hash, size


def _check(name: str, data: bytes, sums: dict[str, tuple[str, str]]) -> None:
    if name not in sums:
        raise Failure(Problem("wrong bytes", name, "RECORD does not list it"))
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    if (f"sha256={digest}", str(len(data))) != sums[name]:
        raise Failure(Problem("wrong bytes", name, "its sha256 or size is not the one in RECORD"))


def _seconds(info: zipfile.ZipInfo) -> float:
    """Read a date without a time zone as UTC, so that two machines write the same tree."""
    try:
        return datetime(*info.date_time, tzinfo=UTC).timestamp()
    except ValueError:  # month 0, second 60: the format allows them
        return datetime(1980, 1, 1, tzinfo=UTC).timestamp()


# --- the disk -----------------------------------------------------------------------------------------------


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Failure(Problem("cannot write", str(path), cause(error))) from error


def _write(path: Path, member: Member) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(member.data)
    os.utime(path, (member.modified, member.modified))


def _free(target: Path) -> Path:
    """Give the real path of a target that may be made, before anything is asked of the network."""
    with _writing(target):
        target = Path(os.path.realpath(target))  # Path.resolve raises RuntimeError for a loop of links
        try:
            taken = any(target.iterdir())
        except FileNotFoundError:
            return target
        if taken:
            raise Failure(Problem("cannot fetch into", str(target), "it is not empty"))
        if target == Path.cwd():  # renaming over it would leave the user's shell in a folder that is gone
            raise Failure(Problem("cannot fetch into", str(target), "it is the current folder"))
    return target


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """Give a new folder beside `target`, which is gone afterwards unless it was renamed.

    It is locked while it is in use: so the next fetch can tell what a killed one left behind, and removes it.
    """
    staging = target.with_name(f".{target.name}.vpatch-{secrets.token_hex(4)}")
    new = [folder for folder in target.parents if not folder.exists()]
    try:
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _sweep(target)
            staging.mkdir()
            lock = os.open(staging, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield staging
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for folder in new:
            with suppress(OSError):  # not empty: the target is in it
                folder.rmdir()


def _sweep(target: Path) -> None:
    pattern = re.escape(f".{target.name}.vpatch-") + "[0-9a-f]{8}"
    for folder in target.parent.iterdir():
        if re.fullmatch(pattern, folder.name) and folder.is_dir() and not folder.is_symlink():
            with suppress(OSError):  # BlockingIOError: another fetch is at work in it
                lock = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
                finally:
                    os.close(lock)
