"""A folder of this machine, seen as an image's file system."""

from __future__ import annotations

from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISLNK, S_ISREG
from typing import IO

from vpatch.image.filesystem import Entry, Kind


class FolderFiles:
    """Implements `vpatch.image.filesystem.Files`."""

    def __init__(self, top: Path) -> None:
        self._top = top

    def entry(self, path: str) -> Entry | None:
        at = self._top / path
        try:
            of = at.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        kinds = ((S_ISREG, Kind.FILE), (S_ISDIR, Kind.FOLDER), (S_ISLNK, Kind.LINK))
        kind = next((kind for is_kind, kind in kinds if is_kind(of.st_mode)), Kind.OTHER)
        target = str(at.readlink()) if kind is Kind.LINK else ""
        return Entry(path, kind, S_IMODE(of.st_mode), of.st_uid, of.st_gid, int(of.st_mtime), of.st_size, target)

    def kind(self, path: str) -> Kind | None:
        here = self.entry(path)
        return here.kind if here else None

    def read(self, path: str) -> bytes | None:
        at = self._top / path
        return at.read_bytes() if at.is_file() and not at.is_symlink() else None

    def open(self, path: str) -> IO[bytes] | None:
        at = self._top / path
        return at.open("rb") if at.is_file() else None

    def names(self, folder: str) -> tuple[str, ...]:
        at = self._top / folder
        return tuple(sorted(path.name for path in at.iterdir())) if at.is_dir() else ()
