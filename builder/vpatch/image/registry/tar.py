"""Layers are tars, packed with gzip, zstd or not at all: read once from the beginning, unpacked nowhere."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import weakref
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from tempfile import TemporaryFile
from typing import IO, BinaryIO

import zstandard

from vpatch.errors import naming
from vpatch.image.filesystem import WHITEOUT, BlockReader, Entry, Kind, Limits, entry_of
from vpatch.net import size

LARGE = 8 << 20  # bytes of a file that is not kept in memory

_OPAQUE = f"{WHITEOUT}{WHITEOUT}.opq"
_BLOCK = 1 << 16
_DAMAGED = (
    *(tarfile.TarError, zlib.error, zstandard.ZstdError, EOFError, OSError, ValueError, OverflowError),
    RecursionError,  # headers of headers
)


class BadLayerError(Exception):
    """A layer that is not a tar, not to be trusted, or exceeds a limit; the message continues `the layer <digest>`."""


_EXCEEDED = {
    "IMAGE": "unpacks, with those above it, to more than {size}",
    "ENTRIES": "has, with those above it, more than {limit:,} entries",
    "NAMES": "has, with those above it, names of more than {size}",
    "MEMORY": "has, with those above it, small files of more than {size} that would be read",
    "COPIES": "has, with those above it, more than {limit:,} large files that would be read",
}


class Spent(Counter[str]):
    """What the layers of one image have used so far of those `Limits` that hold for all of them."""

    def spend(self, name: str, count: int = 1) -> None:
        """Use more of the limit `name`; raise `BadLayerError` if it is exceeded."""
        self[name] += count
        if self[name] > (limit := getattr(Limits, name)):
            raise BadLayerError(_EXCEEDED[name].format(limit=limit, size=size(limit)))


@dataclass(eq=False)
class Copy:
    """A temporary file with the bytes of a large one, closed when nothing refers to this object any longer."""

    file: IO[bytes]
    size: int  # bytes

    def __post_init__(self) -> None:
        weakref.finalize(self, self.file.close)

    def open(self) -> IO[bytes]:
        """Open the file from its beginning; the caller closes it."""
        again = os.fdopen(os.dup(self.file.fileno()), "rb")
        again.seek(0)
        return again


@dataclass
class LayerView:
    """One layer: what it has, and what it removes from the layers below."""

    entries: dict[str, Entry] = field(default_factory=dict)
    contents: dict[str, bytes | Copy] = field(default_factory=dict)  # of the files that were kept
    linked: dict[str, str] = field(default_factory=dict)  # kept hard links to files that were not
    removed: set[str] = field(default_factory=set)  # paths that are hidden with all below them
    opaque: set[str] = field(default_factory=set)  # folders of which everything below is hidden
    children: dict[str, set[str]] = field(default_factory=dict)  # names in each folder, also in those without an entry

    def add(self, entry: Entry) -> int:
        """Add an entry, which replaces one of the same path; return how many characters of names that added."""
        self.contents.pop(entry.path, None)
        self.linked.pop(entry.path, None)
        self.entries[entry.path] = entry
        path, added = entry.path, len(entry.path)
        while path:
            folder, _, name = path.rpartition("/")
            if folder not in self.children:
                self.children[folder] = set()
                added += len(folder)
            if name in self.children[folder]:
                break
            self.children[folder].add(name)
            path = folder
        return added

    def hides(self, path: str) -> bool:
        """Whether this layer hides what layers below have at `path`."""
        above = _parents(path)
        gone = path in self.removed or not (self.removed.isdisjoint(above) and self.opaque.isdisjoint(above))
        return gone or any(self.entries[folder].kind is not Kind.FOLDER for folder in above & self.entries.keys())

    def hides_content(self, folder: str) -> bool:
        """Whether this layer hides everything that layers below have in `folder`."""
        replaced = folder in self.entries and self.entries[folder].kind is not Kind.FOLDER
        return replaced or folder in self.opaque or self.hides(folder)

    def removed_in(self, folder: str) -> set[str]:
        """Return the names that this layer removes from a folder."""
        return {name for above, _, name in (path.rpartition("/") for path in self.removed) if above == folder}


@lru_cache(maxsize=16)  # many layers are asked for one path
def _parents(path: str) -> frozenset[str]:
    parts = path.split("/") if path else []
    return frozenset("/".join(parts[:count]) for count in range(len(parts)))


def read_layer(blob: Iterator[bytes], keep: Callable[[Entry], bool], usage: Spent) -> tuple[LayerView, str]:
    """Read a layer, packed or not, with the bytes of files to `keep`; return it and the digest of its tar."""
    try:
        stream = _TarStream(_unpack(blob), usage)
        with tarfile.TarFile(fileobj=stream) as members:  # type: ignore[arg-type] # it calls no other method
            view = _read_members(members, stream, keep)
        stream.in_data = True  # padding
        while stream.read(_BLOCK):
            continue
    except _DAMAGED as error:
        deque(blob, maxlen=0)  # if the bytes do not match their digest, that is the failure
        raise BadLayerError(f"is no tar: {str(error) or type(error).__name__}") from error
    deque(blob, maxlen=0)
    return view, f"sha256:{stream.digest.hexdigest()}"


def read_paths(blob: Iterator[bytes], usage: Spent) -> Iterator[str]:
    """Yield the paths of a layer's entries as they come, without their bytes, and without any proof of the digest."""
    try:
        stream = _TarStream(_unpack(blob), usage)
        with tarfile.TarFile(fileobj=stream) as members:  # type: ignore[arg-type] # as above
            while member := _next(members, stream):
                yield _relative(member.name)
    except _DAMAGED as error:
        raise BadLayerError(f"is no tar: {str(error) or type(error).__name__}") from error


def _unpack(blob: Iterator[bytes]) -> BinaryIO:
    # The first bytes show the format: registries' media types are unreliable.
    magic = b""
    while len(magic) < 4 and (block := next(blob, b"")):
        magic += block
    packed = io.BufferedReader(BlockReader(chain([magic], blob)), _BLOCK)
    if magic[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=packed)  # type: ignore[return-value]
    if magic[:4] == b"\x28\xb5\x2f\xfd" or magic[1:4] == b"\x2a\x4d\x18":  # a frame, or one to be skipped
        return zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
    return packed


class _TarStream:
    """A tar as `tarfile` reads it: once, forward only; hashed, and counted in `usage`."""

    def __init__(self, source: BinaryIO, usage: Spent) -> None:
        self._source, self.usage, self.digest, self._position = source, usage, hashlib.sha256(), 0
        self.next_header()

    def next_header(self) -> None:
        self.in_data, self._left = False, Limits.HEADER  # headers state their own length

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        if position < self._position:
            raise ValueError("an entry begins before the one above it")
        while self._position < position and self._take(min(_BLOCK, position - self._position)):
            continue

    def read(self, count: int) -> bytes:
        if count < 0:
            raise ValueError("a header is of a negative size")
        if not self.in_data:
            self._left -= count
            if self._left < 0:
                raise BadLayerError(f"has an entry with a header of more than {size(Limits.HEADER)}")
        blocks = []
        while count > 0 and (block := self._take(count)):
            blocks.append(block)
            count -= len(block)
        return b"".join(blocks)

    def _take(self, count: int) -> bytes:
        block = self._source.read(count)
        self.usage.spend("IMAGE", len(block))
        self._position += len(block)
        self.digest.update(block)
        return block


def _read_members(tar: tarfile.TarFile, stream: _TarStream, keep: Callable[[Entry], bool]) -> LayerView:
    view = LayerView()
    solid: set[str] = set()  # paths that are, or were, not a folder
    while member := _next(tar, stream):
        path = _relative(member.name)
        folder, _, name = path.rpartition("/")
        count = len(path)
        if name == _OPAQUE:
            view.opaque.add(folder)
        elif name.startswith(WHITEOUT):
            removed = name.removeprefix(WHITEOUT)
            if removed in ("", ".", ".."):
                raise BadLayerError(f"takes away what is no file: {member.name}")
            view.removed.add(f"{folder}/{removed}".lstrip("/"))
        elif path:
            entry = _entry(view, path, member)
            count = view.add(entry) + len(entry.target)
            if entry.kind is not Kind.FOLDER:
                solid.add(path)
            if entry.kind is Kind.FILE and keep(entry):
                _keep(view, entry, tar, member, stream.usage)
        stream.usage.spend("ENTRIES")
        stream.usage.spend("NAMES", count)
    if path := min(solid & view.children.keys(), default=""):
        below = min(view.children[path])
        raise BadLayerError(f"has an entry that would leave the tree: {path}/{below} is below what is no folder")
    return view


def _next(tar: tarfile.TarFile, stream: _TarStream) -> tarfile.TarInfo | None:
    stream.next_header()
    member = tar.next()
    stream.in_data = True
    tar.members.clear()  # type: ignore[attr-defined]  # or it keeps them all
    if len(tar.pax_headers) > Limits.GLOBALS:
        raise BadLayerError(f"says more than {Limits.GLOBALS} things of all its entries")
    if not member:
        return None
    if max(len(member.name), len(member.linkname)) > Limits.PATH:
        raise BadLayerError(f"has an entry with a path of more than {Limits.PATH:,} characters")
    # Its size is not that of its bytes, which are what is counted; and not every unpacker knows such files.
    if member.issparse() or any(name.startswith("GNU.sparse.") for name in member.pax_headers):
        raise BadLayerError(f"has a sparse file, which no layer has: {member.name}")
    if member.size < 0:
        raise BadLayerError(f"has an entry of a negative size: {member.name}")
    return member


def _keep(view: LayerView, entry: Entry, tar: tarfile.TarFile, member: tarfile.TarInfo, usage: Spent) -> None:
    path = entry.path
    if member.islnk():
        source = _relative(member.linkname)
        source = view.linked.get(source, source)
        if source in view.contents:
            view.contents[path] = view.contents[source]
        else:
            view.linked[path] = source
        return
    if entry.size > Limits.FILE:
        raise BadLayerError(f"has a file of {entry.size:,} bytes, and it may have {size(Limits.FILE)}: {path}")
    file = tar.extractfile(member) or io.BytesIO()
    if entry.size > LARGE:
        usage.spend("COPIES")
        with naming("cannot write", "temporary file"):
            copy = Copy(TemporaryFile(), entry.size)  # noqa: SIM115 - it closes itself
            shutil.copyfileobj(file, copy.file, _BLOCK)
            copy.file.flush()  # it is read through another descriptor
        view.contents[path] = copy
    else:
        view.contents[path] = data = file.read()
        usage.spend("MEMORY", len(data))


def _entry(view: LayerView, path: str, member: tarfile.TarInfo) -> Entry:
    if member.islnk():
        if (source := view.entries.get(_relative(member.linkname))) is None:
            raise BadLayerError(f"has a hard link to what it does not have: {path} to {member.linkname}")
        return replace(source, path=path)
    return entry_of(path, member)


def _relative(name: str) -> str:
    parts = name.split("/")
    if not parts[0] or ".." in parts:
        raise BadLayerError(f"has an entry that would leave the tree: {name}")
    parts = [part for part in parts if part not in ("", ".")]
    if len(parts) > Limits.DEPTH + 1:
        raise BadLayerError(f"has an entry in more than {Limits.DEPTH} folders")
    return "/".join(parts)
