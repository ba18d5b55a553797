"""What a layer says of an image's file system, and what layers say that lie upon each other."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import IO

from vpatch.image.model import Entry, Kind


@dataclass(eq=False)
class Copy:
    """A temporary file with the bytes of a large one. It is closed when nothing refers to this any more."""

    file: IO[bytes]

    def __post_init__(self) -> None:
        weakref.finalize(self, self.file.close)


@dataclass
class View:
    """One layer: the `entries` that it has, and what it takes away of the layers below.

    `contents` are the bytes of the files that were to be kept, `copies` have those of large ones.
    `linked` are hard links that were to be kept, with the path of the file that they are. `removed` are paths that are
    taken away, with all below them; of an `opaque` folder all is taken away that is below it. `children` are the names
    in each folder, also in those that are no entry.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    copies: dict[str, Copy] = field(default_factory=dict)
    linked: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    opaque: set[str] = field(default_factory=set)
    children: dict[str, set[str]] = field(default_factory=dict)

    def add(self, entry: Entry) -> int:
        """Take an entry, which replaces one of the same path. Returns how many characters of names that added."""
        self.entries[entry.path] = entry
        path, added = entry.path, len(entry.path)
        while path:
            folder, _, name = path.rpartition("/")
            if folder not in self.children:
                self.children[folder] = set()
                added += len(folder)
            names = self.children[folder]
            if name in names:
                break
            names.add(name)
            path = folder
        return added

    def take(self, other: View) -> None:
        """Take the bytes of what hard links are from another reading of the layer."""
        links = self.linked.items()
        self.contents |= {path: other.contents[source] for path, source in links if source in other.contents}
        self.copies |= {path: other.copies[source] for path, source in links if source in other.copies}

    def copy(self, path: str) -> IO[bytes]:
        """Give a large file from its beginning, to be closed."""
        again = os.fdopen(os.dup(self.copies[path].file.fileno()), "rb")
        again.seek(0)
        return again

    def hides(self, path: str) -> bool:
        """Say whether what layers below have at `path` is not seen."""
        above = _above(path)
        if path in self.removed or not (self.removed.isdisjoint(above) and self.opaque.isdisjoint(above)):
            return True
        return any(self.entries[folder].kind is not Kind.FOLDER for folder in above & self.entries.keys())

    def removed_in(self, folder: str) -> set[str]:
        """Give the names that are taken away in a folder."""
        start = f"{folder}/" if folder else ""
        names = {path.removeprefix(start) for path in self.removed if path.startswith(start)}
        return {name for name in names if "/" not in name}

    def closes(self, folder: str) -> bool:
        """Say whether what layers below have in `folder` is not seen."""
        return self._ends(folder) or self.hides(folder)

    def _ends(self, folder: str) -> bool:
        entry = self.entries.get(folder)
        return folder in self.removed or folder in self.opaque or (entry is not None and entry.kind is not Kind.FOLDER)


def entry_in(views: Iterable[View], path: str) -> Entry | None:
    """Say what is at `path` in layers that lie upon each other, from the top; None where nothing is."""
    folder = None
    for view in views:
        if found := view.entries.get(path):
            return found if folder is None or found.kind is Kind.FOLDER else folder
        if path in view.children:  # a tar need not name the folders that its files are in
            folder = folder or Entry(path, Kind.FOLDER, 0o755, 0, 0, 0)
        if view.hides(path):
            break
    return folder


def names_in(views: Iterable[View], folder: str) -> tuple[str, ...]:
    """Give the names in a folder, sorted, in layers that lie upon each other, from the top."""
    names: set[str] = set()
    removed: set[str] = set()
    for view in views:
        names |= view.children.get(folder, set()) - removed
        removed |= view.removed_in(folder)
        if view.closes(folder):
            break
    return tuple(sorted(names))


@lru_cache(maxsize=16)  # one path is asked of many layers
def _above(path: str) -> frozenset[str]:
    """Return the folders above `path`, the root (an empty path) included; none for the root itself."""
    parts = path.split("/") if path else []
    return frozenset("/".join(parts[:count]) for count in range(len(parts)))
