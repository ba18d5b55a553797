"""Add a function, a class or a file; replace a function or class that has a known fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch.core import cst
from vpatch.core.edits import ModuleEdit, marked
from vpatch.core.edits.imports import insert
from vpatch.core.marks import mark, marks_on, with_mark
from vpatch.core.overlay import COMPANIONS
from vpatch.core.parse import Lost, Source
from vpatch.core.select import block, definitions, lines, scopes
from vpatch.core.syntax import Spot, fingerprint, same
from vpatch.core.verdict import EditFinding, Found, Landed

if TYPE_CHECKING:
    from vpatch.core.overlay import Reach
    from vpatch.core.workspace import Workspace


def _definition(code: str) -> cst.FunctionDef | cst.ClassDef:
    (node,) = block(code)
    assert isinstance(node, cst.FunctionDef | cst.ClassDef)  # noqa: S101 - an author's mistake, met by the first test
    return node


def _only(owners: list[Spot]) -> Spot:
    if len(owners) != 1:
        raise Lost(f"is defined {len(owners)} times, 1 expected")
    return owners[0]


@dataclass(frozen=True)
class AddFunction(ModuleEdit):
    """Define `new` (a `def` or a `class`) at the end of the class or function `scope`, or of the module.

    What overlays define at the end of a block is sorted by name.
    """

    file: str
    scope: str
    new: str
    uses: tuple[str, ...] = ()

    @property
    def reach(self) -> Reach:
        """The function of that name."""
        return ((self.file, f"{self.scope}.{_definition(self.new).name.value}".strip(".")),)

    def _owner(self, source: Source) -> Spot:
        owner = _only(scopes(source, self.scope))
        if self.scope and not lines(owner):
            raise Lost("its block is on the line of its header")
        return owner

    def _find(self, source: Source, overlay: str) -> EditFinding:
        new = _definition(self.new)
        there = [s for s in definitions(self._owner(source)) if same(new.name, s.node.name)]  # type: ignore[attr-defined]
        if not there:
            return EditFinding(Found.BEFORE, binds=((f"{self.scope}.{new.name.value}", overlay),))
        if len(there) > 1 or not same(new, there[0].node):
            raise Lost(f"{new.name.value!r} is defined already, and is another one")
        return _replaced(there[0], source, overlay, self.uses)

    def _make(self, source: Source, overlay: str) -> Source:
        new, owner = _definition(self.new), self._owner(source)
        here = lines(owner)
        index = len(here)
        while index and _sorts_after(here[index - 1].node, new.name.value):
            index -= 1
        gap = [cst.EmptyLine(indent=False)] * (1 if self.scope else 2)
        spaced = new.deep_clone().with_changes(leading_lines=(*gap, *new.leading_lines))
        return insert(source, owner, index, with_mark(spaced, overlay))


def _sorts_after(node: cst.CSTNode, name: str) -> bool:
    return isinstance(node, cst.FunctionDef | cst.ClassDef) and bool(marks_on(node)) and node.name.value > name


def _replaced(spot: Spot, source: Source, overlay: str, uses: tuple[str, ...]) -> EditFinding:
    ours = frozenset({spot.path} if marked(source, spot.path, overlay) else ())
    return EditFinding(Found.AFTER, marked=ours, regions=(spot.path,), landed=(Landed(spot.path, uses=uses),))


@dataclass(frozen=True)
class ReplaceFunction(ModuleEdit):
    """Replace the function or class `scope` by `new`, if its fingerprint is one of the known `forms`.

    The fingerprint covers the whole definition (`vpatch.testing.fingerprint_of` computes it). So a replacement never
    undoes an upstream change that nobody reviewed, and an overlay carries no upstream code. The comments above the
    definition stay.
    """

    file: str
    scope: str
    forms: tuple[str, ...]
    new: str
    uses: tuple[str, ...] = ()

    def _find(self, source: Source, overlay: str) -> EditFinding:
        spot = _only(scopes(source, self.scope))
        if same(_definition(self.new), spot.node):
            return _replaced(spot, source, overlay, self.uses)
        if (form := fingerprint(spot.node)) in self.forms:
            return EditFinding(Found.BEFORE, regions=(spot.path,))
        known = ", ".join(self.forms)
        raise Lost(f"its form {form} is none of the known: {known}", lambda: f" (line {source.line(spot.path)})")

    def _make(self, source: Source, overlay: str) -> Source:
        (spot,) = scopes(source, self.scope)
        above = spot.node.leading_lines  # type: ignore[attr-defined]
        return source.put(
            spot.path, with_mark(_definition(self.new).deep_clone().with_changes(leading_lines=above), overlay)
        )


@dataclass(frozen=True)
class AddFile:
    """Add a companion module; its first line is the mark. `text` is written as UTF-8.

    Raises:
        ValueError: `file` is not below `vllm/_vpatch/`, where upstream has no file.
    """

    file: str
    text: str
    scope: str = ""

    def __post_init__(self) -> None:
        if not self.file.startswith(COMPANIONS):
            raise ValueError(f"{self.file} is not below {COMPANIONS}")

    @property
    def reach(self) -> Reach:
        """No module."""
        return ()

    def _bytes(self, overlay: str) -> bytes:
        return f"{mark(overlay)}\n{self.text}".encode()

    def state(self, files: Workspace, overlay: str) -> EditFinding:
        """Compare the file with the companion; see `Edit`."""
        match files.read(self.file):
            case None:
                return EditFinding(Found.BEFORE, regions=((),))
            case data if data == self._bytes(overlay):
                return EditFinding(Found.AFTER, marked=frozenset({()}), regions=((),))
        raise Lost("exists already, with other contents")

    def apply(self, files: Workspace, overlay: str) -> None:
        """Add the file; see `Edit`."""
        files.put(self.file, self._bytes(overlay))
