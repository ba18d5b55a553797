"""The members of a wheel, each checked against the wheel's RECORD."""

from __future__ import annotations

import base64
import csv
import hashlib
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import BinaryIO

from vpatch.errors import Failure, Problem
from vpatch.net import limits
from vpatch.net.error_text import cause
from vpatch.net.ranges import RemoteFile
from vpatch.net.spans import Span

Sums = Mapping[str, tuple[str, str]]  # by path: `sha256=<digest>` and the size in bytes, as RECORD writes them

# What zipfile raises for an archive that is damaged, encrypted or compressed in a way that it does not know.
DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError),
    csv.Error,
)


@dataclass(frozen=True)
class Member:
    """A file of a wheel: its path as in site-packages, its checked bytes, its date in seconds since 1970."""

    name: str
    data: bytes
    modified: float


def read_members(file: RemoteFile | BinaryIO, wanted: Callable[[str], bool]) -> Iterator[Member]:
    """Read the files of a wheel whose names are wanted, one at a time, each checked against RECORD.

    Raises:
        Failure: the wheel is damaged, a name leads out of the tree, a file is not what RECORD says, or one of
            `limits` is exceeded.
    """
    where = file.name
    try:
        bounded = _Bounded(file)
        with zipfile.ZipFile(bounded) as archive:
            bounded.most = limits.FILE
            _hold_directory(archive)
            record = _find_record(archive, where)
            chosen = [info for info in archive.infolist() if not info.is_dir() and wanted(info.filename)]
            _refuse(chosen)
            _hold([record, *chosen])
            if isinstance(file, RemoteFile):
                file.prefetch(_spans(archive, [*chosen, record]))
            where = record.filename
            sums = sums_in(_unpacked(archive, record))
            for info in sorted(chosen, key=lambda one: one.header_offset):
                where = info.filename
                data = _unpacked(archive, info)
                if info is not record:
                    _check(where, data, sums)
                yield Member(where, data, _seconds(info))
    except DAMAGED as error:
        raise Failure(Problem("damaged wheel", where, cause(error))) from error


class _Bounded:
    """A wheel as `zipfile` reads it: first its directory, at once, however long it says that this is; then files."""

    def __init__(self, file: RemoteFile | BinaryIO) -> None:
        self._file = file
        self.most = limits.DIRECTORY
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > self.most:
            raise zipfile.BadZipFile(f"its directory has {size:,} bytes, and may have {limits.size(self.most)}")
        return self._file.read(self.most if size < 0 else size) or b""


def _hold_directory(archive: zipfile.ZipFile) -> None:
    """Refuse a wheel whose directory cannot be true, or is too long.

    Raises:
        BadZipFile: it is.
    """
    members = archive.infolist()
    if len(members) > limits.MEMBERS:
        raise zipfile.BadZipFile(f"it has {len(members):,} files, and may have {limits.MEMBERS:,}")
    for info in members:
        if not 0 <= info.header_offset < archive.start_dir:
            raise zipfile.BadZipFile(f"{info.filename} begins at {info.header_offset:,}, outside of it")


def _hold(members: list[zipfile.ZipInfo]) -> None:
    """Refuse files that would be too large, or are packed as no wheel's are.

    Raises:
        Failure: says all of them.
    """
    most = limits.size(limits.FILE)
    problems = [
        Problem("too large", info.filename, f"{info.file_size:,} bytes unpacked, and a file may have {most}")
        for info in members
        if max(info.file_size, info.compress_size) > limits.FILE
    ]
    problems += [
        Problem("damaged wheel", info.filename, "not packed as the files of a wheel are")
        for info in members
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others unpack without a limit
    ]
    total = sum(info.file_size for info in members)
    if total > limits.FILES:
        cause = f"{total:,} bytes unpacked, and what is read may have {limits.size(limits.FILES)}"
        problems.append(Problem("too large", f"{len(members)} files", cause))
    if problems:
        raise Failure(*problems)


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Unpack a file, and no more of it than the directory says that it has."""
    with archive.open(info) as file:
        return file.read(info.file_size)


def _find_record(archive: zipfile.ZipFile, where: str) -> zipfile.ZipInfo:
    found = [info for info in archive.infolist() if is_record(info.filename)]
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


def _spans(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> Iterator[Span]:
    """Where each member lies: up to the next one, since only its local header knows its own length."""
    starts = sorted({info.header_offset for info in archive.infolist()})
    after = dict(zip(starts, [*starts[1:], archive.start_dir], strict=True))
    most = 30 + 2 * 0xFFFF  # bytes of a local header, the longest name and the longest extra field
    return (
        (info.header_offset, min(after[info.header_offset], info.header_offset + most + info.compress_size))
        for info in members
    )


def is_record(name: str) -> bool:
    """Tell whether a file of a wheel is its RECORD."""
    return re.fullmatch(r"[^/]+\.dist-info/RECORD", name) is not None


def sums_in(record: bytes) -> Sums:
    """Read a RECORD.

    Raises:
        ValueError, csv.Error: it is none.
    """
    rows = csv.reader(record.decode("utf-8").splitlines())
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}  # path, hash, size


def _check(name: str, data: bytes, sums: Sums) -> None:
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
