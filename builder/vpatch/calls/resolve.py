"""Resolve what code names to definitions in vLLM, by Jedi's inference.

Jedi reads annotations, constructions, assignments to `self` and return types. It runs no code of the tree, and torch
need not be installed.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from vpatch.core.landing.flow import Definition, Function
from vpatch.errors import Failure, Problem
from vpatch.installation import how_to_add

try:
    import jedi
    from jedi.api.classes import Name
    from parso.cache import parser_cache
except ImportError as error:
    raise Failure(Problem("cannot record", "jedi", f"not installed: {how_to_add('calls')}")) from error


@dataclass(frozen=True)
class Resolved:
    """A definition in vLLM, or an attribute that a class or module sets.

    Attributes:
        file: its path in the tree.
        owner: the qualified name of the class that holds it; "" for a module.
        name: the name of the function, class or attribute.
        node: the definition, or the statement that sets the attribute.
    """

    file: str
    owner: str
    name: str
    node: ast.stmt

    @property
    def place(self) -> str:
        """The key of a definition in a list of calls."""
        return f"{self.file} {self.owner}{'.' * bool(self.owner)}{self.name}"


class Types:
    """What the names in a folder with a vLLM, which has the overlays' code, refer to."""

    def __init__(self, folder: Path) -> None:
        jedi.settings.use_filesystem_cache = False  # the folder is temporary
        parser_cache.clear()  # parso drops what it has not read for ten minutes, and Jedi then misses it
        self.folder = folder
        self._project = jedi.Project(folder, sys_path=[str(folder)], smart_sys_path=False)
        self._python = jedi.InterpreterEnvironment()
        self._parsed: dict[str, ast.Module] = {}
        self._scripts: dict[str, jedi.Script] = {}

    def parsed(self, file: str) -> ast.Module:
        """Return the syntax tree of a file, parsed once."""
        if file not in self._parsed:
            self._parsed[file] = ast.parse((self.folder / file).read_bytes())
        return self._parsed[file]

    def callees(self, file: str, node: ast.expr) -> list[Resolved]:
        """Return the functions and classes in vLLM that a call of `node` in a file may reach."""
        node = node.value if isinstance(node, ast.Subscript) else node  # a Triton kernel with its grid
        if not (where := _position(node)):
            return []
        script = self._script(file)
        found = script.goto(*where, follow_imports=True)
        if not found or any(name.type not in {"function", "class", "property"} for name in found):
            found = script.infer(*where) or found
        return self._targets(found)

    def attributes(self, file: str, node: ast.expr) -> list[Resolved]:
        """Return what in vLLM sets the attribute or name `node` in a file."""
        where = _position(node)
        return self._targets(self._script(file).goto(*where, follow_imports=True)) if where else []

    def classes(self, file: str, node: ast.expr) -> list[Resolved]:
        """Return the classes in vLLM of which the value of `node` may be, or an instance of which it may be."""
        return [each for each in self._targets(self.types(file, node)) if isinstance(each.node, ast.ClassDef)]

    def is_class(self, file: str, node: ast.expr) -> bool:
        """Whether the value of `node` is a class itself."""
        return any(name.type == "class" for name in self.types(file, node))

    def types(self, file: str, node: ast.expr) -> list[Name]:
        """Return the types of a name or an attribute in a file, as far as Jedi knows."""
        where = _position(node)
        return list(self._script(file).infer(*where)) if where else []

    def is_outside(self, name: Name) -> bool:
        """Whether something is defined outside of this tree."""
        return name.module_path is not None and not name.module_path.is_relative_to(self.folder)

    def _script(self, file: str) -> jedi.Script:
        if file not in self._scripts:
            path = self.folder / file
            self._scripts[file] = jedi.Script(path=path, project=self._project, environment=self._python)
        return self._scripts[file]

    def _targets(self, names: list[Name]) -> list[Resolved]:
        found = {(each.file, each.owner, each.name): each for name in names if (each := self._target(name))}
        return list(found.values())

    def _target(self, name: Name) -> Resolved | None:
        """Return what Jedi found; None outside of vLLM, and for variables of a function."""
        path = name.module_path
        if path is None or not path.is_relative_to(self.folder / "vllm") or not name.line:
            return None
        file = path.relative_to(self.folder).as_posix()
        around = _around(self.parsed(file), name.line)
        if not around:
            return Resolved(file, "", name.name, ast.Pass())
        *owners, node = around
        if node.name == name.name and name.type != "param":
            return Resolved(file, ".".join(each.name for each in owners), name.name, node)
        if isinstance(node, Function):
            sets_attribute = name.type != "param" and owners and isinstance(owners[-1], ast.ClassDef)
            if not (sets_attribute and self._is_attribute(file, name)):
                return None
            around = owners
        return Resolved(file, ".".join(each.name for each in around), name.name, node)

    def _is_attribute(self, file: str, name: Name) -> bool:
        """Whether a name in a method follows a dot: `self.name = ...`, not `name = ...`."""
        line = (self.folder / file).read_text().split("\n")[name.line - 1]
        return bool(line[: name.column].rstrip().endswith("."))


def _position(node: ast.expr) -> tuple[int, int] | None:
    """Return line and column of the name that an expression ends with."""
    match node:
        case ast.Attribute(attr=attr, end_lineno=int(line), end_col_offset=int(column)):
            return line, column - len(attr)
        case ast.Name():
            return node.lineno, node.col_offset
    return None


def _around(tree: ast.Module, line: int) -> list[Definition]:
    """List the definitions that hold a line, outermost first."""
    found: list[Definition] = []
    block: list[ast.AST] = list(tree.body)
    while block:
        node = block.pop()
        first = min([getattr(node, "lineno", 0), *(d.lineno for d in getattr(node, "decorator_list", ()))])
        if first <= line <= (getattr(node, "end_lineno", 0) or 0):
            if isinstance(node, Definition):
                found.append(node)
            block = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.ExceptHandler)]
    return found
