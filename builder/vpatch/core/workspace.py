"""The files of a tree as bytes and as syntax trees. Changes stay in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from vpatch.core.changes import Change
from vpatch.core.landing.binding import Scope
from vpatch.core.landing.definitions import Module
from vpatch.core.listing import unpack
from vpatch.core.parse import Lost, Source
from vpatch.core.parsed import Parsed, ParsedModules
from vpatch.core.rewrite import rewritten
from vpatch.errors import Failure, Problem


class Workspace:
    """The files that edits read and change.

    Args:
        read: returns a file's bytes in the tree, None if the tree lacks it.
        cache: parsed modules; workspaces share it, so that equal bytes are parsed once.
        kept: the modules whose syntax trees stay, by default all. Others are freed by `free` and when they change.
    """

    def __init__(
        self,
        read: Callable[[str], bytes | None],
        cache: ParsedModules | None = None,
        kept: Collection[str] | None = None,
    ) -> None:
        self._read = read
        self._cache = cache or ParsedModules()
        self._kept = kept
        self._bytes: dict[str, bytes | None] = {}
        self._digests: dict[str, str] = {}
        self._changed: dict[str, bytes] = {}
        self._makers: dict[str, list[Callable[[Source], Iterable[Change]]]] = {}
        self._read_since = set[str]()

    @contextmanager
    def noting(self) -> Iterator[set[str]]:
        """Yield a set to which each file is added that is read in the block, there or not."""
        around, self._read_since = self._read_since, set()
        try:
            yield self._read_since
        finally:
            around |= self._read_since
            self._read_since = around

    def original(self, file: str) -> bytes | None:
        """Return a file's bytes in the tree, without the changes."""
        self._read_since.add(file)
        if file not in self._bytes:
            self._bytes[file] = self._read(file)
        return self._bytes[file]

    def digest(self, file: str) -> str:
        """Return a digest of a file in the tree, without the changes. A missing file has that of empty contents."""
        if file not in self._digests:
            self._digests[file] = hashlib.sha256(self.original(file) or b"").hexdigest()
        return self._digests[file]

    def names(self, folder: str) -> tuple[str, ...] | None:
        """Return the names in a folder of the tree, whose path ends with a slash; None if the tree does not have it."""
        data = self.original(folder)
        return None if data is None else unpack(data)

    def read(self, file: str) -> bytes | None:
        """Return a file's bytes, changes included.

        Raises:
            Failure: the file's encoding lacks a character that an edit inserted.
        """
        self._read_since.add(file)
        if makers := self._makers.pop(file, None):
            try:
                old = self._parsed(file, self.read(file))
                self._changed[file] = self._made(old.source(), makers)
                if self._kept is not None and file not in self._kept:
                    old.free()
            except UnicodeEncodeError as error:
                raise Failure(Problem("cannot encode", file, f"the new code: {error}")) from error
        return self._changed[file] if file in self._changed else self.original(file)

    def _made(self, source: Source, makers: Iterable[Callable[[Source], Iterable[Change]]]) -> bytes:
        changes: list[Change] = []
        for make in makers:
            with suppress(Lost):  # another edit took the code away; the edit's state after the change tells
                changes += make(source)
        return rewritten(source, changes)

    def free(self, but: Collection[str]) -> None:
        """Free the syntax trees of all modules except these, and those to be kept."""
        if self._kept is not None:
            self._cache.free({*but, *self._kept})

    def source(self, file: str) -> Source:
        """Return a parsed module, changes included.

        Raises:
            Lost: the file does not exist, or it is not valid Python.
        """
        return self._parsed(file, self.read(file)).source()

    def analyzed(self, file: str, data: bytes | None = None) -> Module:
        """Return the scopes of a module, changes included, or of `data`.

        Raises:
            Lost: the file does not exist, or it is not valid Python.
        """
        return self._parsed(file, self.read(file) if data is None else data).analyzed

    def understood(self, file: str, data: bytes | None = None) -> Module | None:
        """Return what `analyzed` does; None if there is no such file, or it is not valid Python."""
        try:
            return self.analyzed(file, data)
        except Lost:
            return None

    def _parsed(self, file: str, data: bytes | None) -> Parsed:
        if data is None:
            raise Lost("no such file")
        return self._cache.module(file, data)

    def scope(self, file: str) -> Scope | None:
        """Return the scope of a module, changes included; None if there is no such file, or Python cannot parse it.

        It takes less time than `analyzed`.
        """
        try:
            return self._parsed(file, self.read(file)).scope
        except Lost:
            return None

    def known(self, file: str) -> Parsed:
        """Return what keeps the findings and answers of a file with these bytes."""
        data = self.read(file)
        return Parsed(file, b"") if data is None else self._cache.module(file, data)

    def put(self, file: str, new: bytes) -> None:
        """Replace a file's contents."""
        self.read(file)
        self._changed[file] = new

    def change(self, file: str, make: Callable[[Source], Iterable[Change]]) -> None:
        """Change a module once it is read. All changes until then are made at once, and `make` sees none of them."""
        self._makers.setdefault(file, []).append(make)

    def changes(self) -> Mapping[str, bytes]:
        """Return the new bytes of every file that differs from the tree."""
        new = {file: self.read(file) for file in sorted({*self._changed, *self._makers})}
        return {file: data for file, data in new.items() if data is not None and data != self._bytes.get(file)}
