"""The files of a tree as bytes and as syntax; changes stay in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from vpatch.core import cst
from vpatch.core.elide import elide
from vpatch.core.nesting import Refused
from vpatch.core.select import Lost, Source
from vpatch.errors import Failure, Problem

if TYPE_CHECKING:
    from vpatch.core.verdict import Finding


@dataclass(frozen=True)
class Known:
    """What is known of a module's bytes: its syntax, or why there is none, and what edits of overlays found in it."""

    source: Source | Lost
    found: dict[tuple[object, str], Finding] = field(default_factory=dict)


Parsed: TypeAlias = dict[tuple[str, frozenset[str], bytes], Known]
WHOLE = frozenset({""})


class Workspace:
    """What the edits read and change.

    `read` gives a file's bytes in the tree, None where there is no such file. `reach` says, for every file, which code
    will be looked at; a file that it lacks is parsed whole. `parsed` may be shared between workspaces, so that equal
    bytes are parsed once.
    """

    def __init__(
        self,
        read: Callable[[str], bytes | None],
        reach: Mapping[str, frozenset[str]] | None = None,
        parsed: Parsed | None = None,
    ) -> None:
        self._read = read
        self._reach = reach or {}
        self._parsed = {} if parsed is None else parsed
        self._bytes: dict[str, bytes | None] = {}
        self._changed: dict[str, Source | bytes] = {}

    def original(self, file: str) -> bytes | None:
        """Read a file as it is in the tree, without the changes."""
        if file not in self._bytes:
            self._bytes[file] = self._read(file)
        return self._bytes[file]

    def read(self, file: str) -> bytes | None:
        """Give a file's present bytes, changes included.

        Raises:
            Failure: the file's encoding lacks a character of what an edit put into it, or the code nests too deeply.
        """
        match self._changed.get(file):
            case None:
                return self.original(file)
            case bytes(data):
                return data
            case source:
                try:
                    data = source.bytes
                except UnicodeEncodeError as error:
                    raise Failure(Problem("cannot encode", file, f"the new code: {error}")) from error
                except RecursionError as error:
                    raise Failure(Problem("cannot write code", file, "it is nested too deeply")) from error
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
        key = (file, reach := self._reach.get(file, WHOLE), data)
        if key not in self._parsed:
            self._parsed[key] = Known(_parse(file, data, reach))
        found = self._parsed[key].source
        if isinstance(found, Lost):
            raise found
        return found

    def found(self, file: str) -> dict[tuple[object, str], Finding]:
        """Give what edits of overlays found in a file, to be added to, as long as it is as it was and parsed."""
        data = None if file in self._changed else self.read(file)
        known = None if data is None else self._parsed.get((file, self._reach.get(file, WHOLE), data))
        return {} if known is None else known.found

    def put(self, file: str, new: Source | bytes) -> None:
        """Take a file's new state."""
        self._changed[file] = new

    def changes(self) -> Mapping[str, bytes]:
        """Give the new bytes of every file that differs from the tree."""
        new = {file: self.read(file) for file in sorted(self._changed)}
        return {file: data for file, data in new.items() if data is not None and data != self._bytes.get(file)}


# Whitespace that libcst drops here and there: form feeds, lone carriage returns, lines of nothing but a backslash.
_ODD = re.compile(rb"\f|\r(?!\n)|^[ \t]*\\\r?\n", re.MULTILINE)


def _parse(file: str, data: bytes, reach: frozenset[str]) -> Source | Lost:
    try:
        rest, elided = elide(data, reach)
        module = cst.parse_module(rest)
    except Refused as error:
        return Lost(str(error))
    except cst.ParserSyntaxError as error:
        cause = error.message.strip().splitlines()[-1]
        return Lost(f"not valid Python: {cause} (line {error.raw_line})")
    except (UnicodeDecodeError, SyntaxError, LookupError) as error:
        return Lost(f"not readable as text: {error}")
    try:
        loses = _ODD.search(rest) and module.bytes != rest
    except RecursionError:
        return Lost("not valid Python: nested too deeply")
    if loses:
        return Lost("has whitespace, such as a form feed before a statement, that an edit would lose")
    return Source(file, module, elided)
