"""The file system of an image, limits on reading it, and a vLLM in it.

Paths inside an image are POSIX and relative to its root: `usr/bin/python3`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from tarfile import TarInfo
from typing import IO, Any, Protocol

from vpatch.core.listing import is_folder, pack
from vpatch.errors import Failure, Problem
from vpatch.guest.record import Record, parse

WHITEOUT = ".wh."  # prefix of a layer's entry that removes another: OCI image specification, layer.md


class Limits:
    """The most that vpatch reads of an image; one that exceeds a limit is refused, and the message names it.

    Generous for real images: vLLM's have some 10 GB packed, and its largest extension has 308 MB (0.33.0).
    """

    LAYERS = 512
    IMAGE = 64 << 30  # bytes read of all layers: packed, and unpacked
    ENTRIES = 1_000_000  # files, folders and links of all layers
    NAMES = 256 << 20  # characters of their paths, and of the folders above them
    PATH = 4096  # characters of a path or of a link's target, as in Linux
    DEPTH = 256  # folders above an entry: each is looked up in each layer
    HEADER = 1 << 20  # bytes of all tar headers of one entry
    GLOBALS = 100  # global pax headers of one tar
    FILE = 4 << 30  # bytes of a file that is read in parts: a compiled extension
    SOURCE = 64 << 20  # bytes of a file that is read whole: a module
    MEMORY = 1 << 30  # bytes of all small files that are kept
    COPIES = 100  # large files that are kept, each in an open temporary file
    VLLMS = 16  # folders that look like a vLLM
    RECORDS = 100  # folders that look like a vLLM in any layer, hidden ones included


class Kind(Enum):
    """The type of a file system entry."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "symbolic link"
    OTHER = "special file"


@dataclass(frozen=True)
class Entry:
    """A file, folder or link of an image: `mode` are its permission bits, `mtime` seconds since the epoch."""

    path: str
    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0  # bytes of a file
    target: str = ""  # text of a link


class Files(Protocol):
    """The file system of an image, as its containers see it. Links are not followed.

    Every method raises `Failure` if the image cannot be read; `read` and `open` also for what is not a regular file.
    """

    def entry(self, path: str) -> Entry | None:
        """Return the entry at `path`, None without one."""

    def kind(self, path: str) -> Kind | None:
        """Return the type of the entry at `path`, None without one; may cost much less than `entry`."""
        here = self.entry(path)
        return here.kind if here else None

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, None without one."""

    def open(self, path: str) -> IO[bytes] | None:
        """Open a file that may be too large to read at once, None without one. The caller closes it."""

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names in a folder, sorted; none for a missing folder."""


class BlockReader(io.RawIOBase):
    """Reads blocks of bytes as one file."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks, self._rest = iter(blocks), memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer."""
        while not self._rest:
            if (block := next(self._blocks, None)) is None:
                return 0
            self._rest = memoryview(block)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def entry_of(path: str, member: TarInfo) -> Entry:
    """Return the entry of a tar's member; the type of a hard link is `OTHER`."""
    kind = Kind.FOLDER if member.isdir() else Kind.LINK if member.issym() else Kind.OTHER
    kind = Kind.FILE if member.isreg() else kind
    count = member.size if kind is Kind.FILE else 0
    target = member.linkname if kind is Kind.LINK else ""
    # An engine sets type bits in the mode, too.
    return Entry(path, kind, member.mode & 0o7777, member.uid, member.gid, int(member.mtime), count, target)


@dataclass(frozen=True)
class Place:
    """Where an image has its vLLM: in the folder `root`; `dist_info` is the name of its `*.dist-info` there."""

    root: str
    dist_info: str

    @property
    def version(self) -> str:
        """The version, for display only: no decision depends on it."""
        return self.dist_info.removesuffix(".dist-info").partition("-")[2]

    @property
    def record(self) -> str:
        """RECORD's path, relative to `root`."""
        return f"{self.dist_info}/RECORD"


def read_from(files: Files, vllm: Place, path: str) -> bytes | None:
    """Read a file, or list a folder, of a vLLM in an image: the engine's reader of a tree."""
    where = f"{vllm.root}/{path}"
    if not is_folder(path):
        return files.read(where)
    names = files.names(folder := where.rstrip("/"))
    return pack(names) if names or files.kind(folder) is Kind.FOLDER else None


def read_record(files: Files, vllm: Place) -> Record | None:
    """Read vLLM's RECORD, None if the image has no such file. Raises `Failure` if it is invalid."""
    path = f"{vllm.root}/{vllm.record}"
    if (content := files.read(path)) is None:
        return None
    try:
        content.decode()  # no engine takes other paths
        return parse(content)
    except ValueError as error:
        raise Failure(Problem("cannot read RECORD", f"/{path}", str(error))) from error
