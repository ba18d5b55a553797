"""Layers are tars, packed with gzip, zstd or not at all: read once from their beginning, unpacked nowhere."""

from __future__ import annotations

import io
import shutil
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from tempfile import TemporaryFile

import zstandard

from vpatch.errors import naming
from vpatch.image import limits
from vpatch.image.limits import LimitError, Spent, size
from vpatch.image.model import Entry, Kind
from vpatch.image.registry.packing import BLOCK, Tape, unpacked
from vpatch.image.registry.view import Copy, View
from vpatch.image.tar import WHITEOUT, kind_of

_OPAQUE = f"{WHITEOUT}{WHITEOUT}.opq"

LARGE = 8 << 20  # bytes of a file that is not kept in memory


_DAMAGED = (
    *(tarfile.TarError, zlib.error, zstandard.ZstdError, EOFError, OSError, ValueError, OverflowError),
    RecursionError,  # headers of headers
)


class BadLayerError(Exception):
    """A layer that is no tar, or one that is not to be trusted."""


def read_layer(blob: Iterator[bytes], keep: Callable[[Entry], bool], spent: Spent | None = None) -> tuple[View, str]:
    """Read a layer, and the digest of its tar.

    Args:
        blob: its bytes, packed or not.
        keep: whether the bytes of a file are wanted.
        spent: what the image has taken so far, to be added to.

    Raises:
        BadLayerError: it is damaged, has an entry that would leave the tree, or exceeds one of `limits`.
    """
    try:
        tape = Tape(unpacked(blob), spent or Spent())
        with tarfile.TarFile(fileobj=tape) as members:  # type: ignore[arg-type] # it asks for no more methods
            view = _read_members(members, tape, keep)
        tape.data = True  # padding
        _drain(iter(lambda: tape.read(BLOCK), b""))
    except _DAMAGED as error:
        _drain(blob)  # bytes that are not what their digest says are told as that
        raise BadLayerError(f"is no tar: {str(error) or type(error).__name__}") from error
    except LimitError as error:
        raise BadLayerError(str(error)) from error
    _drain(blob)
    return view, f"sha256:{tape.digest.hexdigest()}"


def _drain(rest: Iterator[bytes]) -> None:
    deque(rest, maxlen=0)


def _read_members(tar: tarfile.TarFile, tape: Tape, keep: Callable[[Entry], bool]) -> View:
    view = View()
    solid: set[str] = set()  # what is or was no folder
    while member := _next(tar, tape):
        path = _inside(member.name)
        folder, _, name = path.rpartition("/")
        if name == _OPAQUE:
            view.opaque.add(folder)
        elif name.startswith(WHITEOUT):
            gone = name.removeprefix(WHITEOUT)
            if gone in ("", ".", ".."):
                raise BadLayerError(f"takes away what is no file: {member.name}")
            view.removed.add(f"{folder}/{gone}".lstrip("/"))
        elif path:
            entry = _entry(view, path, member)
            tape.spent.name(view.add(entry) + len(entry.target))
            view.contents.pop(path, None)
            view.copies.pop(path, None)  # a copy closes when nothing has it
            view.linked.pop(path, None)
            if entry.kind is not Kind.FOLDER:
                solid.add(path)
            if entry.kind is Kind.FILE and keep(entry):
                _keep(view, entry, tar, member, tape.spent)
        if not path or name.startswith(WHITEOUT):
            tape.spent.name(len(path))
    if through := solid & view.children.keys():
        path = min(through)
        below = min(view.children[path])
        raise BadLayerError(f"has an entry that would leave the tree: {path}/{below} is below what is no folder")
    return view


def _next(tar: tarfile.TarFile, tape: Tape) -> tarfile.TarInfo | None:
    tape.header()
    member = tar.next()
    tape.data = True
    tar.members.clear()  # type: ignore[attr-defined]  # or it remembers them all
    if len(tar.pax_headers) > limits.GLOBALS:
        raise LimitError(f"says more than {limits.GLOBALS} things of all its entries")
    if member:
        _check(member)
    return member


def _check(member: tarfile.TarInfo) -> None:
    if max(len(member.name), len(member.linkname)) > limits.PATH:
        raise LimitError(f"has an entry with a path of more than {limits.PATH:,} characters")
    # Its size is not that of its bytes, which are what is counted; and not all who unpack layers know of such files.
    if member.issparse() or any(name.startswith("GNU.sparse.") for name in member.pax_headers):
        raise BadLayerError(f"has a sparse file, which no layer has: {member.name}")
    if member.size < 0:
        raise BadLayerError(f"has an entry of a negative size: {member.name}")


def _keep(view: View, entry: Entry, tar: tarfile.TarFile, member: tarfile.TarInfo, spent: Spent) -> None:
    if not member.islnk():
        if entry.size > limits.FILE:
            raise LimitError(f"has a file of {entry.size:,} bytes, and it may have {size(limits.FILE)}: {entry.path}")
        file = tar.extractfile(member) or io.BytesIO()
        if entry.size > LARGE:
            spent.copy()
            with naming("cannot write", "temporary file"):
                copy = Copy(TemporaryFile())  # noqa: SIM115 - it closes itself
                shutil.copyfileobj(file, copy.file, BLOCK)
                copy.file.flush()  # it is read by another descriptor
            view.copies[entry.path] = copy
        else:
            data = file.read()
            spent.keep(len(data))
            view.contents[entry.path] = data
        return
    source = _inside(member.linkname)
    source = view.linked.get(source, source)
    if source in view.contents:
        view.contents[entry.path] = view.contents[source]
    elif source in view.copies:
        view.copies[entry.path] = view.copies[source]
    else:
        view.linked[entry.path] = source


def _entry(view: View, path: str, member: tarfile.TarInfo) -> Entry:
    if member.islnk():
        if (source := view.entries.get(_inside(member.linkname))) is None:
            raise BadLayerError(f"has a hard link to what it does not have: {path} to {member.linkname}")
        return replace(source, path=path)
    kind = kind_of(member)
    count = member.size if kind is Kind.FILE else 0
    target = member.linkname if kind is Kind.LINK else ""
    return Entry(path, kind, member.mode & 0o7777, member.uid, member.gid, int(member.mtime), count, target)


def _inside(name: str) -> str:
    parts = name.split("/")
    if not parts[0] or ".." in parts:
        raise BadLayerError(f"has an entry that would leave the tree: {name}")
    parts = [part for part in parts if part not in ("", ".")]
    if len(parts) > limits.DEPTH + 1:
        raise LimitError(f"has an entry in more than {limits.DEPTH} folders")
    return "/".join(parts)
