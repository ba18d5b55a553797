"""Make a layer: the same files give the same bytes, on any machine.

The format is that of the OCI image specification, layer.md: a tar in which `.wh.<name>` takes `<name>` away.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from vpatch.image.model import Entry, Kind, Layer
from vpatch.image.tar import WHITEOUT


def make(contents: Mapping[str, bytes], entries: Sequence[Entry], removed: Sequence[str], mtime: int) -> Layer:
    """Make a layer.

    Args:
        contents: the bytes of its files, by path.
        entries: mode and owner of each of its files and folders; the folders above each file belong there, or
            unpacking would make them anew, as root's. A file's `mtime` is what it had before, 0 for a new one.
        removed: the paths of files below to take away.
        mtime: what every entry gets, in seconds since the epoch. A file that had just this before gets one second
            more, so that bytecode of what it was is never taken for its own.
    """
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in sorted((*entries, *map(_whiteout, removed)), key=lambda entry: entry.path):
            info = tarfile.TarInfo(entry.path)
            info.mode, info.uid, info.gid = entry.mode, entry.uid, entry.gid
            info.mtime = mtime + (entry.kind is Kind.FILE and entry.mtime == mtime)
            if entry.kind is Kind.FOLDER:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                data = contents.get(entry.path, b"")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    blob = gzip.compress(tar.getvalue(), mtime=0)
    return Layer(blob, digest_of(blob), digest_of(tar.getvalue()), tuple(sorted(contents)), tuple(sorted(removed)))


def digest_of(data: bytes) -> str:
    """Give the digest of some bytes, as registries write it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _whiteout(path: str) -> Entry:
    at = PurePosixPath(path)
    return Entry(str(at.with_name(f"{WHITEOUT}{at.name}")), Kind.FILE, 0o644, 0, 0, 0)
