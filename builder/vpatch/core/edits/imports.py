"""Ensure that names are imported."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from vpatch.core import cst
from vpatch.core.edits import ModuleEdit, marked
from vpatch.core.marks import mark, marks_on, with_mark
from vpatch.core.overlay import Reach
from vpatch.core.parse import Lost, Source
from vpatch.core.select import block, lines, scopes
from vpatch.core.syntax import Path, Spot, along, fingerprint, same
from vpatch.core.verdict import EditFinding, Found, Landed

_GUARD = "if TYPE_CHECKING"


def _is_docstring(node: cst.CSTNode) -> bool:
    match node:
        case cst.SimpleStatementLine(body=[cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString()), *_]):
            return True
    return False


def _imports(node: cst.CSTNode) -> list[cst.Import | cst.ImportFrom]:
    small = node.body if isinstance(node, cst.SimpleStatementLine) else ()
    return [s for s in small if isinstance(s, cst.Import | cst.ImportFrom)]


def _is_future(node: cst.CSTNode) -> bool:
    match _imports(node):
        case [cst.ImportFrom(module=cst.Name("__future__")), *_]:
            return True
    return False


def _bindings(node: cst.CSTNode, among: Collection[str] | None = None) -> list[tuple[str, cst.CSTNode]]:
    """List the names that a statement binds, each with its definition or the part of the import that binds it.

    The name of `import a.b` is `a.b`: it does not collide with `import a` or `import a.c`. Of an import's names, those
    that are not in `among` are left out.
    """
    if isinstance(node, cst.FunctionDef | cst.ClassDef):
        return [(node.name.value, node)]
    bound: list[tuple[str, cst.CSTNode]] = []
    for small in node.body if isinstance(node, cst.SimpleStatementLine) else ():
        match small:
            case cst.Import(names=[*names]) | cst.ImportFrom(names=[*names]):
                for alias in names:
                    name = alias.evaluated_alias or alias.evaluated_name
                    if among is None or name in among:
                        alone = small.with_changes(names=[alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)])
                        bound.append((name, alone))
            case cst.Assign(targets=targets):
                bound += [(t.target.value, small) for t in targets if isinstance(t.target, cst.Name)]
            case cst.AnnAssign(target=cst.Name(name), value=cst.BaseExpression()):
                bound.append((name, small))
    return bound


@cache
def _wanted(statement: str) -> dict[str, cst.CSTNode]:
    return dict(_bindings(block(statement)[0]))


def _place(here: Sequence[Spot], new: cst.CSTNode, source: Source) -> int:
    """Return the index for a new import: behind the imports that open the block; `__future__` behind the docstring.

    Imports that overlays added are sorted, so that the order of overlays does not matter.
    """
    first = 1 if here and _is_docstring(here[0].node) else 0
    if _is_future(new):
        return first

    def key(line: cst.CSTNode) -> str:
        return source.module.code_for_node(_imports(line)[0])

    index = _opening(here)
    while index > first:
        before = here[index - 1].node
        if not marks_on(before) or _is_future(before) or key(before) <= key(new):
            break
        index -= 1
    return index


def _opening(here: Sequence[Spot]) -> int:
    index = 1 if here and _is_docstring(here[0].node) else 0
    while index < len(here) and _imports(here[index].node):
        index += 1
    return index


def insert(source: Source, owner: Spot, index: int, new: cst.CSTNode) -> Source:
    """Put a statement at `index` of a block."""
    here = lines(owner)
    if index < len(here):
        return source.put(here[index].path, new, here[index].node)
    if here:
        return source.put(here[-1].path, here[-1].node, new)
    return source.put(owner.path, owner.node.with_changes(body=[new], has_trailing_newline=True))


@dataclass(frozen=True)
class EnsureImport(ModuleEdit):
    """Ensure that `statement` (`import a`, `from a import b, c as d`) is in force in the module or in one function.

    With `typing_only` the import goes below the module's `if TYPE_CHECKING:`, which is added if necessary, unless
    upstream has the import, there or unguarded. If something else binds the name there, the edit is `drifted`.
    """

    file: str
    statement: str
    scope: str = ""
    typing_only: bool = False

    @property
    def reach(self) -> Reach:
        """The function, or the module's code outside functions."""
        return ((self.file, self.scope or None),)

    def _owners(self, source: Source) -> tuple[list[Spot], Spot | None]:
        """Return the blocks in which the import counts, and the one to put it in, None if the guard is missing."""
        owners = scopes(source, self.scope)
        if len(owners) != 1:
            raise Lost(f"{self.scope!r} is defined {len(owners)} times, 1 expected")
        guards: list[Spot] = []
        if self.typing_only:
            with suppress(Lost):
                guards = scopes(source, "", (_GUARD,))
        target = guards[0] if guards else None if self.typing_only else owners[0]
        if target and target.path and not lines(target):
            raise Lost("its block is on the line of its header")
        return [*owners, *guards], target

    def _find(self, source: Source, overlay: str) -> EditFinding:
        wanted = _wanted(self.statement)
        owners, target = self._owners(source)
        landed, shared = self._provided(owners, target, source, overlay)
        marks = {path for path in landed if marked(source, path, overlay)}
        lacking = not wanted.keys() <= set().union(*landed.values()) or (shared and not marks)
        if marks and target and self._added_guard(target):
            ours = marked(source, target.path, overlay)
            marks.update([target.path] if ours else ())
            lacking |= not ours
        binds = tuple((f"{self.scope}.{name}", fingerprint(import_)) for name, import_ in wanted.items())
        found = Found.BEFORE if lacking else Found.AFTER
        there = []
        for path, names in () if self.typing_only else landed.items():
            bound = () if "__future__" in self.statement else (name.partition(".")[0] for name in names)
            there.append(Landed(path, reads=frozenset(), binds=frozenset(bound)))
        return EditFinding(found, marked=frozenset(marks), binds=binds, landed=tuple(there))

    def _provided(
        self, owners: Sequence[Spot], target: Spot | None, source: Source, overlay: str
    ) -> tuple[dict[Path, set[str]], bool]:
        """Return the names that statements import as wanted, and whether a statement of another overlay does."""
        landed: dict[Path, set[str]] = {}
        shared = False
        for owner, spot in ((one, spot) for one in owners for spot in lines(one)):
            if names := self._names(spot, source):
                marks = marks_on(spot.node)
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
                raise Lost(f"`{self.statement}`: {name!r} is already bound by `{source.text(bound)}`")
        return names

    def _added_guard(self, target: Spot) -> bool:
        return self.typing_only and bool(marks_on(target.node))

    def _make(self, source: Source, overlay: str) -> Source:
        line = block(self.statement)[0]
        owners, target = self._owners(source)
        if target is None:
            return self._guarded(source, owners[0], overlay)
        here = lines(target)
        there = next((spot for spot in here if marks_on(spot.node) and same(spot.node, line)), None)
        if there:
            source = source.put(there.path, with_mark(there.node, overlay))
        else:
            index = _place(here, line, source)
            gap = [cst.EmptyLine(indent=False)] if _is_future(line) and index else []
            new = with_mark(line.deep_clone().with_changes(leading_lines=gap), overlay)
            source = insert(source, target, index, new)
        if self._added_guard(target):
            guard = along(source.module, target.path)[-1]
            source = source.put(target.path, with_mark(guard, overlay))
        return source

    def _guarded(self, source: Source, owner: Spot, overlay: str) -> Source:
        """Add the guard and the import behind the module's imports, at least behind that of `TYPE_CHECKING`."""
        (guard,) = block(f"{_GUARD}:\n    {self.statement}  {mark(overlay)}")
        guard = guard.deep_clone().with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        here = lines(owner)
        flag = max((i for i, spot in enumerate(here, 1) if "TYPE_CHECKING" in dict(_bindings(spot.node))), default=0)
        return insert(source, owner, max(_opening(here), flag), with_mark(guard, overlay))
