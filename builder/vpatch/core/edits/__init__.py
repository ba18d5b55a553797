"""The kinds of change that an overlay is made of, all frozen dataclasses, and what they share."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

from vpatch.core.landing.binding import Read, reads
from vpatch.core.parse import Source
from vpatch.core.select import scopes
from vpatch.core.syntax import Path, Spot
from vpatch.core.verdict import EditFinding

if TYPE_CHECKING:
    from vpatch.core.changes import Change
    from vpatch.core.workspace import Workspace


class ModuleEdit(ABC):
    """An `Edit` of a module's code."""

    file: str
    scope: str

    def state(self, files: Workspace, overlay: str) -> EditFinding:
        """Look for the code before and after the edit; see `Edit`."""
        return self._find(files.source(self.file), overlay)

    def apply(self, files: Workspace, overlay: str) -> None:
        """Make the edit, marked; see `Edit`."""
        files.change(self.file, partial(self._changes, overlay=overlay))

    @abstractmethod
    def _find(self, source: Source, overlay: str) -> EditFinding: ...

    @abstractmethod
    def _changes(self, source: Source, overlay: str) -> Iterator[Change]: ...


@dataclass(frozen=True)
class CodeEdit(ModuleEdit):
    """An edit of code that stands in a scope; `Patch` describes the fields."""

    file: str
    scope: str
    within: tuple[str, ...] = field(default=(), kw_only=True)
    count: int = field(default=1, kw_only=True)
    uses: tuple[str, ...] = field(default=(), kw_only=True)

    def _owners(self, source: Source) -> list[Spot]:
        return scopes(source, self.scope, self.within)


def marked(source: Source, path: Path, overlay: str) -> bool:
    """Whether the statement that carries the mark of a change at `path` has the overlay's mark."""
    return bool(source.mark_of(path, overlay))


@cache
def names_read_by(code: str) -> frozenset[Read]:
    """Collect the names that an expression reads."""
    return frozenset(reads(ast.parse(code.strip(), mode="eval").body, annotations=True))
