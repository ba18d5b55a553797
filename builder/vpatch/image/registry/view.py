"""What one layer says of an image's file system."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field

from vpatch.image.model import Entry, Kind


@dataclass
class View:
    """One layer: the `entries` that it has, and what it takes away of the layers below.

    `contents` are the bytes of the files that were to be kept. `linked` are hard links that were to be kept, with the
    path of the file that they are. `removed` are paths that are taken away, with all below them; of an `opaque` folder
    all is taken away that is below it. `children` are the names in each folder, also in those that are no entry.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    linked: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    opaque: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.children: dict[str, set[str]] = {}

    def add(self, entry: Entry) -> None:
        """Take an entry, which replaces one of the same path."""
        self.entries[entry.path] = entry
        path = entry.path
        while path:
            folder, _, name = path.rpartition("/")
            names = self.children.setdefault(folder, set())
            if name in names:
                break
            names.add(name)
            path = folder

    def hides(self, path: str) -> bool:
        """Say whether what layers below have at `path` is not seen."""
        return path in self.removed or any(map(self._ends, above(path)))

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


def above(path: str) -> Iterator[str]:
    """Give the folders that `path` is below, from the nearest; the last is the root, an empty path."""
    while path:
        path = posixpath.dirname(path)
        yield path
