"""Ensure that names are imported."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from vpatch.core.changes import Amendment, Splice
from vpatch.core.edits import ModuleEdit, marked
from vpatch.core.matching import same
from vpatch.core.parse import Lost, Source
from vpatch.core.select import block, scopes
from vpatch.core.syntax import Path, Spot, behind_docstring
from vpatch.core.verdict import EditFinding, Found, Landed

if TYPE_CHECKING:
    from vpatch.core.changes import Change

GUARD = "if TYPE_CHECKING"
_IMPORTS = (ast.Import, ast.ImportFrom)


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _bindings(node: ast.stmt, among: Collection[str] | None = None) -> list[tuple[str, ast.AST]]:
    """List the names that a statement binds, each with its definition or the part of the import that binds it.

    The name of `import a.b` is `a.b`: it does not collide with `import a` or `import a.c`. Of an import's names, those
    that are not in `among` are left out.
    """
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [(name, node)]
        case ast.Import(names=aliases):
            named: list[tuple[str, ast.AST]] = [(alias.asname or alias.name, ast.Import([alias])) for alias in aliases]
        case ast.ImportFrom(names=aliases):
            named = [(a.asname or a.name, ast.ImportFrom(node.module, [a], node.level)) for a in aliases]
        case ast.Assign(targets=targets):
            return [(target.id, node) for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(name), value=ast.expr()):
            return [(name, node)]
        case _:
            return []
    return [(name, alone) for name, alone in named if among is None or name in among]


@cache
def _wanted(statement: str) -> dict[str, ast.AST]:
    return dict(_bindings(block(statement)[0]))


def _place(source: Source, here: Sequence[Spot], new: str) -> int:
    """Return the index for a new import: behind the imports that open the block; `__future__` behind the docstring.

    Imports that overlays added are sorted, so that the order of overlays does not matter.
    """
    first = behind_docstring(here)
    if _is_future(block(new)[0]):
        return first
    index = _opening(here)
    while index > first:
        before = here[index - 1].node
        text = source.text_of(before)
        if not source.marks_on(before) or _is_future(before) or text <= new:
            break
        index -= 1
    return index


def _opening(here: Sequence[Spot]) -> int:
    index = behind_docstring(here)
    while index < len(here) and isinstance(here[index].node, _IMPORTS):
        index += 1
    return index


@dataclass(frozen=True)
class EnsureImport(ModuleEdit):
    """Ensure that an import is in force in a module or in one function.

    If something else binds the name there, the part is drifted.

    Attributes:
        file: the module's path.
        statement: `import a`, or `from a import b, c as d`.
        scope: the qualified name of the function; "" is the module.
        typing_only: whether the import goes below the module's `if TYPE_CHECKING:`, which is added if necessary,
            unless upstream has the import, there or unguarded.
    """

    file: str
    statement: str
    scope: str = ""
    typing_only: bool = False

    def _owners(self, source: Source) -> tuple[list[Spot], Spot | None]:
        """Return the blocks in which the import counts, and the one to put it in, None if the guard is missing."""
        owners = scopes(source, self.scope)
        if len(owners) != 1:
            raise Lost(f"{self.scope!r} is defined {len(owners)} times, 1 expected")
        guards: list[Spot] = []
        if self.typing_only:
            with suppress(Lost):
                guards = scopes(source, "", (GUARD,))
        target = guards[0] if guards else None if self.typing_only else owners[0]
        if target and target.path and not source.block(target):
            raise Lost("its block is on the line of its header")
        return [*owners, *guards], target

    def _find(self, source: Source, overlay: str) -> EditFinding:
        wanted = _wanted(self.statement)
        owners, target = self._owners(source)
        landed, shared = self._provided(owners, target, source, overlay)
        ours = frozenset[int]().union(*(source.mark_of(path, overlay) for path in landed))
        lacking = not wanted.keys() <= set().union(*landed.values()) or (shared and not ours)
        if ours and target and self._added_guard(source, target):
            lacking |= not marked(source, target.path, overlay)
            ours |= source.mark_of(target.path, overlay)
        binds = tuple((f"{self.scope}.{name}", ast.dump(import_)) for name, import_ in wanted.items())
        found = Found.BEFORE if lacking else Found.AFTER
        there = []
        for path, names in () if self.typing_only else landed.items():
            bound = () if "__future__" in self.statement else (name.partition(".")[0] for name in names)
            there.append(Landed(path, reads=frozenset(), binds=frozenset(bound)))
        return EditFinding(found, marked=ours, binds=binds, landed=tuple(there))

    def _provided(
        self, owners: Sequence[Spot], target: Spot | None, source: Source, overlay: str
    ) -> tuple[dict[Path, set[str]], bool]:
        """Return the names that statements import as wanted, and whether a statement of another overlay does."""
        landed: dict[Path, set[str]] = {}
        shared = False
        for owner, spot in ((one, spot) for one in owners for spot in source.block(one)):
            if names := self._names(spot, source):
                marks = source.marks_on(spot.node)
                foreign = bool(marks) and overlay not in marks
                if not foreign or owner is target:
                    landed[spot.path] = names
                    shared |= foreign
        return landed, shared

    def _names(self, spot: Spot, source: Source) -> set[str]:
        """Return the names that a statement imports as wanted; it may bind no other of the wanted names."""
        wanted, names = _wanted(self.statement), set()
        for name, bound in _bindings(spot.node, wanted):
            if any(same(import_, bound) for import_ in wanted.values()):
                names.add(name)
            elif name in wanted:
                raise Lost(f"`{self.statement}`: {name!r} is already bound by `{_text(source, bound)}`")
        return names

    def _added_guard(self, source: Source, target: Spot) -> bool:
        return self.typing_only and bool(source.marks_on(target.node))

    def _changes(self, source: Source, overlay: str) -> Iterator[Change]:
        line = block(self.statement)[0]
        owners, target = self._owners(source)
        rank = (0, not _is_future(line), self.statement)
        if target is None:
            # Behind the module's imports, at least behind that of `TYPE_CHECKING`.
            here = source.block(owners[0])
            flag = max(
                (i for i, spot in enumerate(here, 1) if "TYPE_CHECKING" in dict(_bindings(spot.node))), default=0
            )
            index = max(_opening(here), flag)
            yield Splice(owners[0], index, index, self.statement, overlay, rank, under=GUARD)
            return
        here = source.block(target)
        there = next((spot for spot in here if source.marks_on(spot.node) and same(spot.node, line)), None)
        if there:
            yield Amendment(there.path, overlay)
        else:
            index = _place(source, here, self.statement)
            yield Splice(target, index, index, self.statement, overlay, rank, above=_is_future(line) and index > 0)
        if self._added_guard(source, target):
            yield Amendment(target.path, overlay)


def _text(source: Source, bound: ast.AST) -> str:
    return source.quoted(bound) if hasattr(bound, "lineno") else ast.unparse(bound)
