"""One release of the package index, read as a tree: only the files that overlays name, and others that they ask for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from vpatch.errors import Failure
from vpatch.matrix.cache import Cache
from vpatch.matrix.releases import IndexRelease, releases_of


@dataclass(frozen=True)
class ReleaseReads:
    """The files of a release, each read once.

    Attributes:
        release: the release.
        notes: on where its files come from, for people.
    """

    release: IndexRelease
    notes: list[str]
    _files: dict[str, bytes | None] = field(default_factory=dict)

    @classmethod
    def opened(cls, version: str, files: Collection[str]) -> ReleaseReads:
        """Find a release, and read those of these files that it has.

        Raises:
            UnknownName: there is no such release.
            Failure: it cannot be read.
        """
        (release,), notes = releases_of("vllm", [version], user_cache())
        return cls.of(release, files, notes)

    @classmethod
    def of(cls, release: IndexRelease, files: Collection[str], notes: Iterable[str] = ()) -> ReleaseReads:
        """Read those of these files that a release has.

        Raises:
            Failure: it cannot be read.
        """
        reads = cls(release, [*notes])
        reads._read(files)
        return reads

    def read(self, file: str) -> bytes | None:
        """Return a file, or the listing of a folder; None if the release does not have it."""
        if file not in self._files:
            self._read([file])
        return self._files[file]

    def _read(self, files: Collection[str]) -> None:
        got = self.release.read(files)
        self._files.update({file: got.files.get(file) for file in files})
        self.notes.extend(got.notes)


def user_cache() -> Cache | None:
    """Return the user's cache; None if it cannot be written: then it saves nothing, and stops nothing."""
    with suppress(Failure):
        return Cache.opened()
    return None
