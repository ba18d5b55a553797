"""Add a function, a class or a file; replace a function or class that has a known form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch.core import cst
from vpatch.core.edits.census import marked
from vpatch.core.edits.imports import insert
from vpatch.core.marks import mark, marks_on, with_mark
from vpatch.core.overlay import COMPANIONS
from vpatch.core.parse import Lost, Source
from vpatch.core.select import block, definitions, lines, scopes
from vpatch.core.syntax import fingerprint, same
from vpatch.core.verdict import Finding, Found, Landed

if TYPE_CHECKING:
    from vpatch.core.overlay import Reach
    from vpatch.core.syntax import Spot
    from vpatch.core.workspace import Workspace


def _definition(code: str) -> cst.FunctionDef | cst.ClassDef:
    (node,) = block(code)
    assert isinstance(node, cst.FunctionDef | cst.ClassDef)  # noqa: S101 - an author's mistake, met by the first test
    return node


@dataclass(frozen=True)
class AddFunction:
    """Define `new` (a `def` or a `class`) at the end of the class or function `scope`, or of the module.

    `uses` are the attributes, written `self.name`, that it relies on.
    """

    file: str
    scope: str
    new: str
    uses: tuple[str, ...] = ()

    @property
    def reach(self) -> Reach:
        """The function of that name, if there is one."""
        return ((self.file, f"{self.scope}.{_definition(self.new).name.value}".strip(".")),)

    def _owner(self, source: Source) -> Spot:
        owners = scopes(source, self.scope)
        if len(owners) != 1:
            raise Lost(f"is defined {len(owners)} times, 1 expected")
        if self.scope and not lines(owners[0]):
            raise Lost("its block is on the line of its header")
        return owners[0]

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether it is defined."""
        source, new = files.source(self.file), _definition(self.new)
        there = [s for s in definitions(self._owner(source)) if same(new.name, s.node.name)]  # type: ignore[attr-defined]
        if not there:
            return Finding(Found.BEFORE, binds=((f"{self.scope}.{new.name.value}", overlay),))
        if len(there) == 1 and same(new, there[0].node):
            ours = frozenset(s.path for s in there if marked(source, s.path, overlay))
            landed = (Landed(there[0].path, uses=self.uses),)
            return Finding(Found.AFTER, marked=ours, regions=(there[0].path,), landed=landed)
        raise Lost(f"{new.name.value!r} is defined already, and is another one")

    def apply(self, files: Workspace, overlay: str) -> None:
        """Define it; what overlays define at the end of a block is kept sorted by name."""
        source, new = files.source(self.file), _definition(self.new)
        owner = self._owner(source)
        here, index = lines(owner), len(lines(owner))
        while index and _added(here[index - 1], after=new.name.value):
            index -= 1
        gap = [cst.EmptyLine(indent=False)] * (1 if self.scope else 2)
        spaced = new.deep_clone().with_changes(leading_lines=(*gap, *new.leading_lines))
        files.put(self.file, insert(source, owner, index, with_mark(spaced, overlay)))


def _added(spot: Spot, *, after: str) -> bool:
    node = spot.node
    return isinstance(node, cst.FunctionDef | cst.ClassDef) and bool(marks_on(node)) and node.name.value > after


@dataclass(frozen=True)
class ReplaceFunction:
    """Put `new` in the place of the function or class `scope`, if it has one of the known `forms`.

    A form is a fingerprint of the whole definition (`vpatch.testing.fingerprint_of` gives it), so that a replacement
    never undoes an upstream change that nobody looked at, and no upstream code is carried along. `uses` are the
    attributes, written `self.name`, that `new` relies on.
    """

    file: str
    scope: str
    forms: tuple[str, ...]
    new: str
    uses: tuple[str, ...] = ()

    @property
    def reach(self) -> Reach:
        """The scope."""
        return ((self.file, self.scope),)

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether a known form is there, or `new`."""
        source, new = files.source(self.file), _definition(self.new)
        found = scopes(source, self.scope)
        if len(found) != 1:
            raise Lost(f"is defined {len(found)} times, 1 expected")
        node, path = found[0].node, found[0].path
        if same(new, node):
            ours = frozenset({path}) if marked(source, path, overlay) else frozenset()
            return Finding(Found.AFTER, marked=ours, regions=(path,), landed=(Landed(path, uses=self.uses),))
        if (form := fingerprint(node)) in self.forms:
            return Finding(Found.BEFORE, regions=(path,))
        known = ", ".join(self.forms)
        raise Lost(f"its form {form} is none of the known: {known}", lambda: f" (line {source.line(path)})")

    def apply(self, files: Workspace, overlay: str) -> None:
        """Replace it; the comments above it stay."""
        source, new = files.source(self.file), _definition(self.new)
        (spot,) = scopes(source, self.scope)
        above = spot.node.leading_lines  # type: ignore[attr-defined]
        fresh = with_mark(new.deep_clone().with_changes(leading_lines=above), overlay)
        files.put(self.file, source.put(spot.path, fresh))


@dataclass(frozen=True)
class AddFile:
    """Put a new file, a companion module, into the tree; its first line is the mark. `text` is written as UTF-8.

    Raises:
        ValueError: `file` is not below `vllm/_vpatch/`, where nothing of upstream's can come to be.
    """

    file: str
    text: str
    scope: str = ""

    def __post_init__(self) -> None:
        if not self.file.startswith(COMPANIONS):
            raise ValueError(f"{self.file} is not below {COMPANIONS}")

    @property
    def reach(self) -> Reach:
        """Nothing of any module."""
        return ()

    def _bytes(self, overlay: str) -> bytes:
        return f"{mark(overlay)}\n{self.text}".encode()

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether it is there."""
        match files.read(self.file):
            case None:
                return Finding(Found.BEFORE, regions=((),))
            case data if data == self._bytes(overlay):
                return Finding(Found.AFTER, marked=frozenset({()}), regions=((),))
        raise Lost("exists already, with other contents")

    def apply(self, files: Workspace, overlay: str) -> None:
        """Add it."""
        files.put(self.file, self._bytes(overlay))
