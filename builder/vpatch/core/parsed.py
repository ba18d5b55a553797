"""The modules that an engine has parsed, with what edits and predicates found in them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from vpatch.core import cst, nesting
from vpatch.core.landing.binding import Scope
from vpatch.core.landing.definitions import Module, analyzed
from vpatch.core.parse import Lost, Source
from vpatch.core.verdict import Answer, EditFinding

# White space that libcst, which makes some changes, may not write back: form feeds, lines of nothing but a backslash.
_ODD = re.compile(r"\f|^[ \t]*\\\r?\n", re.MULTILINE)


@dataclass
class Parsed:
    """A module's bytes, parsed when needed, with the findings of edits in them and the answers of predicates."""

    file: str
    data: bytes
    findings: dict[tuple[object, str], EditFinding] = field(default_factory=dict)
    answers: dict[object, Answer] = field(default_factory=dict)
    _source: Source | Lost | None = None

    def source(self) -> Source:
        """Return the parsed module.

        Raises:
            Lost: Python cannot parse it, or libcst could not change it and keep the rest.
        """
        if self._source is None:
            try:
                self._source = _parsed(self.file, self.data)
            except Lost as lost:
                self._source = lost.with_traceback(None)
        if isinstance(self._source, Lost):
            raise self._source
        return self._source

    def free(self) -> None:
        """Free the syntax tree and the scopes. The findings and the answers stay."""
        if isinstance(self._source, Source):
            self._source.free()
        if module := vars(self).pop("analyzed", None):
            module.scope.free()
        if scope := vars(self).pop("scope", None):
            scope.free()

    @cached_property
    def analyzed(self) -> Module:
        """The module's scopes.

        Raises:
            Lost: as `source`.
        """
        return analyzed(self.source().tree)

    @cached_property
    def scope(self) -> Scope:
        """The module's scope, without what functions in it declare global.

        Raises:
            Lost: as `source`.
        """
        return Scope(self.source().tree)


def _parsed(file: str, data: bytes) -> Source:
    try:
        text, encoding = nesting.decode(data)
    except (UnicodeDecodeError, SyntaxError, LookupError) as error:
        raise Lost(f"not readable as text: {error}") from error
    except nesting.Unparsable as error:
        raise Lost(str(error)) from error
    source = Source(file, text, encoding)
    try:
        _ = source.tree
    except nesting.Unparsable as error:
        raise Lost(str(error)) from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise Lost(f"not valid Python: {getattr(error, 'msg', error)}{f' (line {line})' if line else ''}") from error
    if re.search(r"\r(?!\n)", text):
        raise Lost("has a carriage return without a line feed, which ends a line for Python only")
    if _ODD.search(text) and cst.parse_module(text).code != text:
        raise Lost("has whitespace, such as a form feed before a statement, that an edit would lose")
    return source


class ParsedModules:
    """The modules that one engine has parsed, each once for equal bytes."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], Parsed] = {}

    def module(self, file: str, data: bytes) -> Parsed:
        """Return the entry for a file with these bytes."""
        known = self._known.get((file, data))
        if known is None:
            known = self._known[file, data] = Parsed(file, data)
        return known

    def free(self, but: Collection[str]) -> None:
        """Free the syntax trees of all files that are not in `but`."""
        for (file, _), known in self._known.items():
            if file not in but:
                known.free()

    def forget(self, but: Collection[bytes]) -> None:
        """Drop every entry whose bytes are not in `but`."""
        for (_, data), known in self._known.items():
            if data not in but:
                known.free()
        self._known = {key: known for key, known in self._known.items() if key[1] in but}
