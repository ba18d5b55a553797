"""Add a function, a class or a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch.core import nesting
from vpatch.core.calls import module_files
from vpatch.core.changes import Splice
from vpatch.core.edits import ModuleEdit
from vpatch.core.marks import mark
from vpatch.core.matching import same
from vpatch.core.overlay import COMPANIONS, MODULE
from vpatch.core.parse import Lost, Source
from vpatch.core.select import block, definitions, scopes
from vpatch.core.syntax import Spot
from vpatch.core.verdict import ADDED, EditFinding, Found, Landed

if TYPE_CHECKING:
    from vpatch.core.changes import Change
    from vpatch.core.workspace import Workspace

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _definition(code: str) -> _Definition:
    (node,) = block(code)
    assert isinstance(node, _Definition)  # noqa: S101 - an author's mistake, met by the first test
    return node


@dataclass(frozen=True)
class AddFunction(ModuleEdit):
    """Define a function or class at the end of a class, a function or a module.

    What overlays define at the end of a block is sorted by name.

    Attributes:
        file: the module's path.
        scope: the qualified name of the class or function; "" is the module.
        new: the source, a `def` or a `class`.
        uses: the attributes, written `self.name`, that the new code relies on.
    """

    file: str
    scope: str
    new: str
    uses: tuple[str, ...] = ()

    def _owner(self, source: Source) -> Spot:
        owners = scopes(source, self.scope)
        if len(owners) != 1:
            raise Lost(f"is defined {len(owners)} times, 1 expected")
        if self.scope and not source.block(owners[0]):
            raise Lost("its block is on the line of its header")
        return owners[0]

    def _find(self, source: Source, overlay: str) -> EditFinding:
        new = _definition(self.new)
        there = [spot for spot in definitions(self._owner(source)) if spot.node.name == new.name]
        if not there:
            return EditFinding(Found.BEFORE, binds=((f"{self.scope}.{new.name}", overlay),))
        if len(there) > 1 or not same(new, there[0].node):
            raise Lost(f"{new.name!r} is defined already, and is another one")
        path = there[0].path
        landed = (Landed(path, uses=self.uses),)
        return EditFinding(Found.AFTER, marked=source.mark_of(path, overlay), regions=(path,), landed=landed)

    def _changes(self, source: Source, overlay: str) -> Iterator[Change]:
        name, owner = _definition(self.new).name, self._owner(source)
        here = source.block(owner)
        index = len(here)
        while index and _sorts_after(source, here[index - 1].node, name):
            index -= 1
        yield Splice(owner, index, index, self.new.strip("\n"), overlay, rank=(3, name), above=1 if self.scope else 2)


def _sorts_after(source: Source, node: ast.stmt, name: str) -> bool:
    return isinstance(node, _Definition) and bool(source.marks_on(node)) and node.name > name


@dataclass(frozen=True)
class AddFile:
    """Add a module; its first line is the mark.

    Below `vllm/_vpatch/`, it is a companion: upstream has no file there. Elsewhere, upstream may have the same program,
    which is then merged.

    Attributes:
        file: its path, relative to the folder that holds `vllm/`.
        text: the source, written as UTF-8.
        scope: always "", the module.

    Raises:
        ValueError: `file` is neither a companion nor the path of a module below `vllm/`.
    """

    file: str
    text: str
    scope: str = ""

    def __post_init__(self) -> None:
        if not (self.is_companion or MODULE.fullmatch(self.file)):
            raise ValueError(f"{self.file} is no Python module below vllm/")

    @property
    def is_companion(self) -> bool:
        """Whether the file is one that only overlays have."""
        return self.file.startswith(COMPANIONS)

    def _forms(self) -> list[str]:
        """Return the other files that Python imports by the name of this one."""
        name = self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return [] if self.is_companion else [file for file in module_files(name) if file != self.file]

    def _bytes(self, overlay: str) -> bytes:
        return f"{mark(overlay)}\n{self.text}".encode()

    def state(self, files: Workspace, overlay: str) -> EditFinding:
        """Compare the file with the module; see `Edit`."""
        match files.read(self.file):
            case None:
                # One of the two would hide the other. What a missing file has is asked each time, and not remembered.
                for other in self._forms():
                    if files.read(other) is not None:
                        raise Lost(f"the module exists already, as {other}")
                return EditFinding(Found.BEFORE, regions=((),))
            case data if data == self._bytes(overlay):
                return EditFinding(Found.AFTER, marked=ADDED, regions=((),))
        if self.is_companion:
            raise Lost("exists already, with other contents")
        if not same(_program(self.text), _program(files.source(self.file).text)):
            raise Lost("exists already, and is another program: upstream's, or your own")
        return EditFinding(Found.AFTER, context=((),))  # upstream's: other overlays may rest on it, and not change it

    def apply(self, files: Workspace, overlay: str) -> None:
        """Add the file; see `Edit`."""
        files.put(self.file, self._bytes(overlay))


def _program(text: str) -> ast.Module:
    """Parse a module, and drop its docstrings."""
    tree = nesting.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | _Definition) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return tree
