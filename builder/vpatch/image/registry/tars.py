"""Layers are tars, packed with gzip, zstd or not at all: read once from their beginning, unpacked nowhere."""

from __future__ import annotations

import io
import shutil
import tarfile
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from tempfile import TemporaryFile

import zstandard

from vpatch.image.model import Entry, Kind
from vpatch.image.registry.packing import BLOCK, Hashed, unpacked
from vpatch.image.registry.view import View
from vpatch.image.tar import WHITEOUT, kind_of
from vpatch.site.disk import naming

_OPAQUE = f"{WHITEOUT}{WHITEOUT}.opq"


LARGE = 8 << 20  # bytes of a file that is not kept in memory


class BadLayerError(Exception):
    """A layer that is no tar, or one that is not to be trusted."""


def read_layer(blob: Iterator[bytes], keep: Callable[[Entry], bool]) -> tuple[View, str]:
    """Read a layer; `keep` says of which files the bytes are wanted. Gives also the digest of its tar.

    Raises:
        BadLayerError: it is damaged, or has an entry that would leave the tree.
    """
    try:
        tar = Hashed(unpacked(blob))
        # In blocks: a layer's extensions are passed over by reading them.
        with tarfile.open(fileobj=tar, mode="r|", bufsize=BLOCK) as members:
            view = _read_members(members, keep)
        _drain(iter(lambda: tar.read(BLOCK), b""))
    except (tarfile.TarError, zlib.error, zstandard.ZstdError, EOFError, OSError, ValueError, OverflowError) as error:
        _drain(blob)  # bytes that are not what their digest says are told as that
        raise BadLayerError(f"is no tar: {str(error) or type(error).__name__}") from error
    _drain(blob)
    return view, f"sha256:{tar.digest.hexdigest()}"


def _drain(rest: Iterator[bytes]) -> None:
    deque(rest, maxlen=0)


def _read_members(tar: tarfile.TarFile, keep: Callable[[Entry], bool]) -> View:
    view = View()
    solid: set[str] = set()  # what is or was no folder
    while member := tar.next():
        tar.members.clear()  # type: ignore[attr-defined]  # or it remembers them all
        path = _inside(member.name)
        folder, _, name = path.rpartition("/")
        if name == _OPAQUE:
            view.opaque.add(folder)
        elif name.startswith(WHITEOUT):
            gone = name.removeprefix(WHITEOUT)
            if gone in ("", ".", ".."):
                raise BadLayerError(f"takes away what is no file: {_told(member.name)}")
            view.removed.add(f"{folder}/{gone}".lstrip("/"))
        elif path:
            entry = _entry(view, path, member)
            view.add(entry)
            view.contents.pop(path, None)
            view.copies.pop(path, None)
            view.linked.pop(path, None)
            if entry.kind is not Kind.FOLDER:
                solid.add(path)
            if entry.kind is Kind.FILE and keep(entry):
                _keep(view, entry, tar, member)
    if through := solid & view.children.keys():
        path = min(through)
        below = min(view.children[path])
        raise BadLayerError(
            f"has an entry that would leave the tree: {_told(f'{path}/{below}')} is below what is no folder"
        )
    return view


def _keep(view: View, entry: Entry, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    if not member.islnk():
        file = tar.extractfile(member) or io.BytesIO()
        if entry.size > LARGE:
            copy = TemporaryFile()  # noqa: SIM115 - it goes with the view
            weakref.finalize(view, copy.close)
            with naming("cannot write", "temporary file"):
                shutil.copyfileobj(file, copy, BLOCK)
            view.copies[entry.path] = copy
        else:
            view.contents[entry.path] = file.read()
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
            raise BadLayerError(f"has a hard link to what it does not have: {_told(path)} to {_told(member.linkname)}")
        return replace(source, path=path)
    kind = kind_of(member)
    size = member.size if kind is Kind.FILE else 0
    target = member.linkname if kind is Kind.LINK else ""
    return Entry(path, kind, member.mode & 0o7777, member.uid, member.gid, int(member.mtime), size, target)


def _inside(name: str) -> str:
    parts = name.split("/")
    if not parts[0] or ".." in parts:
        raise BadLayerError(f"has an entry that would leave the tree: {_told(name)}")
    return "/".join(part for part in parts if part not in ("", "."))


def _told(path: str) -> str:
    return path if path.isprintable() else ascii(path)  # it may hold what moves a cursor, or is no UTF-8
