"""Folders of a tree, read as files are: of a path that ends with a slash, a reader returns the names in that folder.

So whatever remembers, hashes, keeps or reads again the files of a tree does the same with a listing.
"""

from __future__ import annotations

from collections.abc import Iterable


def is_folder(path: str) -> bool:
    """Whether a path names a folder."""
    return path.endswith("/")


def pack(names: Iterable[str]) -> bytes:
    """Return the names in a folder, those of folders too, as the bytes that a reader returns for it."""
    return "\0".join(sorted(names)).encode("utf-8", "surrogateescape")  # no name has a null character


def unpack(data: bytes) -> tuple[str, ...]:
    """Return the names in the bytes of a listing."""
    return tuple(filter(None, data.decode("utf-8", "surrogateescape").split("\0")))


def among(paths: Iterable[str], folder: str) -> bytes | None:
    """List a folder of an archive that has files at `paths`; None if nothing is in it."""
    below = [path.removeprefix(folder) for path in paths if path.startswith(folder)]
    return pack({path.partition("/")[0] for path in below} - {""}) if below else None
