"""A wheel on a server or on disk: its members, each checked against the wheel's RECORD."""

from __future__ import annotations

import csv
import hashlib
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import BinaryIO

from vpatch.errors import Failure, Problem, raise_all
from vpatch.guest.record import Record, digest, parse
from vpatch.net import size
from vpatch.net.ranges import Progress, RemoteFile, Span, open_remote
from vpatch.net.session import LIMITS, cause
from vpatch.release.index import Wheel
from vpatch.release.index_config import open_session, read_settings
from vpatch.wrapping import shortened

# zipfile raises these for an archive that is damaged, encrypted, or compressed by an unknown method; csv for a RECORD.
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OverflowError, csv.Error)

_PART = 255  # bytes of a file's or a folder's name, as file systems have it


@dataclass(frozen=True)
class Member:
    """A file of a wheel: its path in site-packages, its checked bytes, its date in seconds since 1970."""

    name: str
    data: bytes
    modified: float


@contextmanager
def open_wheel(wheel: Wheel, *, progress: Progress | None = None) -> Iterator[RemoteFile]:
    """Open a wheel on its server, for `read_members`. A whole wheel must have the hash on the index."""
    with open_session(read_settings()) as session, open_remote(session, wheel.url, progress=progress) as file:
        if file.whole and wheel.sha256 and hashlib.file_digest(file, "sha256").hexdigest() != wheel.sha256:
            raise Failure(Problem("wrong bytes", file.name, "its sha256 is not the one on the index"))
        yield file


def read_members(file: RemoteFile | BinaryIO, wanted: Callable[[str], bool]) -> Iterator[Member]:
    """Yield the files of a wheel whose names are wanted, each checked against RECORD.

    Raises:
        Failure: the wheel is damaged or exceeds `LIMITS`, a name leads out of the tree, or a file differs from RECORD.
    """
    where = file.name
    try:
        bounded = _Bounded(file)
        with zipfile.ZipFile(bounded) as archive:
            bounded.most = LIMITS.file
            _check_directory(archive)
            records = [info for info in archive.infolist() if is_record(info.filename)]
            if len(records) != 1:
                raise Failure(Problem("not a wheel", where, f"{len(records)} RECORD files in it, not one"))
            record = records[0]
            chosen = [info for info in archive.infolist() if not info.is_dir() and wanted(info.filename)]
            _check_names(chosen)
            _check_sizes([record, *chosen])
            if isinstance(file, RemoteFile):
                file.prefetch(_spans(archive, [*chosen, record]))
            where = record.filename
            rows = parse(_unpacked(archive, record))
            for info in sorted(chosen, key=lambda one: one.header_offset):
                where = info.filename
                data = _unpacked(archive, info)
                if info is not record:
                    _check_sum(where, data, rows)
                yield Member(where, data, _seconds(info))
    except DAMAGED as error:
        raise Failure(Problem("damaged wheel", where, cause(error))) from error


class _Bounded:
    """A wheel as `zipfile` reads it: first its directory in one read, of the length that it claims; then files."""

    def __init__(self, file: RemoteFile | BinaryIO) -> None:
        self._file = file
        self.most = LIMITS.directory
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, count: int = -1) -> bytes:
        if count > self.most:
            raise zipfile.BadZipFile(f"its directory has {count:,} bytes, and may have {size(self.most)}")
        return self._file.read(self.most if count < 0 else count) or b""


def _check_directory(archive: zipfile.ZipFile) -> None:
    members = archive.infolist()
    if len(members) > LIMITS.members:
        raise zipfile.BadZipFile(f"it has {len(members):,} files, and may have {LIMITS.members:,}")
    for info in members:
        if not 0 <= info.header_offset < archive.start_dir:
            raise zipfile.BadZipFile(f"{shortened(info.filename, 100)} begins at {info.header_offset:,}, outside of it")


def _check_sizes(members: list[zipfile.ZipInfo]) -> None:
    """Refuse files that are too large, or compressed by a method that no wheel uses."""
    most = size(LIMITS.file)
    problems = [
        Problem("too large", info.filename, f"{info.file_size:,} bytes unpacked, and a file may have {most}")
        for info in members
        if max(info.file_size, info.compress_size) > LIMITS.file
    ]
    problems += [
        Problem("damaged wheel", info.filename, "not packed as the files of a wheel are")
        for info in members
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others unpack without a limit
    ]
    total = sum(info.file_size for info in members)
    if total > LIMITS.files:
        problem = f"{total:,} bytes unpacked, and what is read may have {size(LIMITS.files)}"
        problems.append(Problem("too large", f"{len(members)} files", problem))
    raise_all(problems)


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Unpack a file, up to the size in the directory."""
    with archive.open(info) as file:
        return file.read(info.file_size)


def _check_names(members: list[zipfile.ZipInfo]) -> None:
    """Refuse members that would not become plain files, each at its own place in the tree."""
    seen: set[str] = set()
    problems = []
    for info in members:
        name = info.orig_filename  # zipfile cuts `filename` at a null character
        parts = name.split("/")
        if len(parts) > LIMITS.folders or max(len(part.encode()) for part in parts) > _PART:
            cause = f"more than {LIMITS.folders} folders in each other, or {_PART} bytes of one"
            problems.append(Problem("unsafe name in wheel", shortened(name, 100), cause))
        elif "\\" in name or "\0" in name or {"", ".", ".."} & {*parts}:
            problems.append(Problem("unsafe name in wheel", repr(name), "it leads out of the tree"))
        elif stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
            problems.append(Problem("unsafe file in wheel", name, "a link or a special file"))
        elif name in seen:
            problems.append(Problem("unsafe name in wheel", name, "it is there twice"))
        seen.add(name)
    raise_all(problems)


def _spans(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> Iterator[Span]:
    """Locate each member: it ends before the next one, as only its local header has its own length."""
    starts = sorted({info.header_offset for info in archive.infolist()})
    after = dict(zip(starts, [*starts[1:], archive.start_dir], strict=True))
    most = 30 + 2 * 0xFFFF  # bytes of a local header, the longest name and the longest extra field
    return (
        (info.header_offset, min(after[info.header_offset], info.header_offset + most + info.compress_size))
        for info in members
    )


def is_record(name: str) -> bool:
    """Return whether a file of a wheel is its RECORD."""
    return re.fullmatch(r"[^/]+\.dist-info/RECORD", name) is not None


def _check_sum(name: str, data: bytes, rows: Record) -> None:
    if (row := rows.row(name)) is None:
        raise Failure(Problem("wrong bytes", name, "RECORD does not list it"))
    if row.fields[1:] != (digest(data), str(len(data))):
        raise Failure(Problem("wrong bytes", name, "its sha256 or size is not the one in RECORD"))


def _seconds(info: zipfile.ZipInfo) -> float:
    """Convert a date, which has no time zone, as UTC: two machines then write the same tree."""
    try:
        return datetime(*info.date_time, tzinfo=UTC).timestamp()
    except ValueError:  # month 0, second 60: the format can express them
        return datetime(1980, 1, 1, tzinfo=UTC).timestamp()
