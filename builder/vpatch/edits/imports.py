"""Ensure that a name is imported."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch import cst
from vpatch.edits.census import marked
from vpatch.marks import mark, marks_on, with_mark
from vpatch.model import Finding, Found
from vpatch.select import Lost, Source, block, lines, scopes
from vpatch.syntax import Spot, same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpatch.syntax import Path
    from vpatch.workspace import Workspace

_TYPING = ("if TYPE_CHECKING",)


def _is_import(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.Import | cst.ImportFrom)


def _is_docstring(node: cst.CSTNode) -> bool:
    return (
        isinstance(node, cst.SimpleStatementLine)
        and isinstance(node.body[0], cst.Expr)
        and isinstance(node.body[0].value, cst.SimpleString | cst.ConcatenatedString)
    )


def _aliases(node: cst.CSTNode) -> list[tuple[str, cst.CSTNode]]:
    """Give what the imports on a line bind: each name, with the import that binds nothing else."""
    bound: list[tuple[str, cst.CSTNode]] = []
    for small in node.body if isinstance(node, cst.SimpleStatementLine) else ():
        if isinstance(small, cst.Import | cst.ImportFrom) and not isinstance(small.names, cst.ImportStar):
            for alias in small.names:
                name = alias.evaluated_alias or alias.evaluated_name.partition(".")[0]
                bound.append((name, small.with_changes(names=[alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)])))
    return bound


def opening(here: Sequence[Spot]) -> int:
    """Give the index behind a block's docstring and the imports that open it."""
    index = 1 if here and _is_docstring(here[0].node) else 0
    while index < len(here) and _is_import(here[index].node):
        index += 1
    return index


def place(here: Sequence[Spot], new: cst.CSTNode, source: Source) -> int:
    """Give where an import belongs in a block: the last of those that open it.

    The imports that overlays added there are kept sorted, so that the order of their application leaves no trace.
    """
    index = opening(here)
    while index and marks_on(here[index - 1].node) and source.text(here[index - 1].node) > source.text(new):
        index -= 1
    return index


def insert(source: Source, owner: Spot, index: int, new: cst.CSTNode) -> Source:
    """Put a statement at `index` of a block."""
    here = lines(owner)
    if index < len(here):
        return source.put(here[index].path, new, here[index].node)
    if here:
        return source.put(here[-1].path, here[-1].node, new)
    return source.put(owner.path, owner.node.with_changes(body=[new]))


@dataclass(frozen=True)
class EnsureImport:
    """Make sure that `statement` (`import a`, `from a import b, c as d`) is in force in the module or in one function.

    With `typing_only` it is put under the module's `if TYPE_CHECKING:`, which is added where there is none; an import
    that always runs is good enough too. A name that another import binds there is `drifted`, never overwritten.
    """

    file: str
    statement: str
    scope: str = ""
    typing_only: bool = False

    def _owners(self, source: Source) -> list[Spot]:
        """Give the blocks in which the import counts, the one to put it in last."""
        owners = scopes(source, self.scope)
        if len(owners) != 1:
            raise Lost(f"{self.scope!r} is defined {len(owners)} times, 1 expected")
        if self.typing_only:
            with suppress(Lost):
                owners += scopes(source, "", _TYPING)[:1]
        if owners[-1].path and not lines(owners[-1]):
            raise Lost("its block is on the line of its header")
        return owners

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether the import is in force."""
        source = files.source(self.file)
        (line,) = block(self.statement)
        wanted = dict(_aliases(line))
        missing, shared = dict(wanted), False
        marks: set[Path] = set()
        owners = self._owners(source)
        for spot in (spot for owner in owners for spot in lines(owner)):
            for name, bound in _aliases(spot.node):
                if name not in wanted:
                    continue
                if not same(wanted[name], bound):
                    binding = source.text(bound)
                    return Finding(Found.LOST, f"`{self.statement}`: {name!r} is already bound by `{binding}`")
                missing.pop(name, None)
                marks.update({spot.path} if marked(source, spot.path, overlay) else ())
                shared |= bool(marks_on(spot.node)) and not marked(source, spot.path, overlay)
        if missing or (shared and not marks):
            return Finding(Found.BEFORE)
        marks.update(guard.path for guard in owners[1:] if marks and marked(source, guard.path, overlay))
        return Finding(Found.AFTER, marked=frozenset(marks))

    def apply(self, files: Workspace, overlay: str) -> None:
        """Add it, marked; where another overlay added it, add the mark."""
        source = files.source(self.file)
        (line,) = block(self.statement)
        new = with_mark(line.deep_clone(), overlay)
        *_, owner = owners = self._owners(source)
        for spot in (spot for owner in owners for spot in lines(owner)):
            if marks_on(spot.node) and same(spot.node, line):
                files.put(self.file, source.put(spot.path, with_mark(spot.node, overlay)))
                return
        here = lines(owner)
        if self.typing_only and len(owners) == 1:
            (guard,) = block(f"{_TYPING[0]}:\n    {self.statement}  {mark(overlay)}")
            guard = guard.deep_clone().with_changes(leading_lines=[cst.EmptyLine(indent=False)])
            source = insert(source, owner, opening(here), with_mark(guard, overlay))
        else:
            source = insert(source, owner, place(here, new, source), new)
        files.put(self.file, source)


@dataclass(frozen=True)
class EnsureFutureAnnotations:
    """Make sure that the module begins with `from __future__ import annotations`."""

    file: str
    scope: str = ""

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether it does."""
        return self._import().state(files, overlay)

    def apply(self, files: Workspace, overlay: str) -> None:
        """Add it, marked, where Python demands it: before every other statement but the docstring."""
        source = files.source(self.file)
        here = lines(scopes(source, "")[0])
        there = any(name == "annotations" for spot in here for name, _ in _aliases(spot.node))
        if there:
            self._import().apply(files, overlay)
            return
        (line,) = block(self._import().statement)
        index = 1 if here and _is_docstring(here[0].node) else 0
        new = with_mark(line.deep_clone().with_changes(leading_lines=[cst.EmptyLine(indent=False)] * index), overlay)
        files.put(self.file, insert(source, Spot((), source.module), index, new))

    def _import(self) -> EnsureImport:
        return EnsureImport(self.file, "from __future__ import annotations")
