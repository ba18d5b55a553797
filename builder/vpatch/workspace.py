"""The files of a tree as bytes and as syntax; changes stay in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vpatch import cst
from vpatch.select import Lost, Source


class Workspace:
    """What the edits read and change.

    `read` gives a file's bytes in the tree, None where there is no such file. `parsed` may be shared between
    workspaces, so that equal bytes are parsed once.
    """

    def __init__(
        self, read: Callable[[str], bytes | None], parsed: dict[tuple[str, bytes], Source] | None = None
    ) -> None:
        self._read = read
        self._parsed = {} if parsed is None else parsed
        self._bytes: dict[str, bytes | None] = {}
        self._changed: dict[str, Source | bytes] = {}

    def read(self, file: str) -> bytes | None:
        """Give a file's present bytes, changes included."""
        match self._changed.get(file):
            case None:
                if file not in self._bytes:
                    self._bytes[file] = self._read(file)
                return self._bytes[file]
            case bytes(data):
                return data
            case source:
                data = source.module.bytes
                self._changed[file] = data
                return data

    def source(self, file: str) -> Source:
        """Give a module's present syntax.

        Raises:
            Lost: there is no such file, or it is not valid Python.
        """
        changed = self._changed.get(file)
        if isinstance(changed, Source):
            return changed
        data = self.read(file)
        if data is None:
            raise Lost("no such file")
        if (file, data) not in self._parsed:
            self._parsed[file, data] = _parse(file, data)
        return self._parsed[file, data]

    def put(self, file: str, new: Source | bytes) -> None:
        """Take a file's new state."""
        self._changed[file] = new

    def changes(self) -> Mapping[str, bytes]:
        """Give the new bytes of every file that differs from the tree."""
        new = {file: self.read(file) for file in sorted(self._changed)}
        return {file: data for file, data in new.items() if data is not None and data != self._bytes.get(file)}


def _parse(file: str, data: bytes) -> Source:
    try:
        module = cst.parse_module(data)
    except cst.ParserSyntaxError as error:
        raise Lost(f"not valid Python: {error.message.strip().splitlines()[-1]}", error.raw_line) from error
    except (UnicodeDecodeError, SyntaxError, LookupError) as error:
        raise Lost(f"not readable as text: {error}") from error
    return Source(file, module)
