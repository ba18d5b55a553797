"""Consistent renames, as an upstream refactoring would make them: all occurrences of one variable, and no others.

libcst's `ScopeProvider`, not the engine under test, decides which occurrences belong to one variable.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from symtable import symtable

import libcst as cst
from libcst.metadata import (
    Access,
    Assignment,
    BaseAssignment,
    FunctionScope,
    GlobalScope,
    MetadataWrapper,
    PositionProvider,
    Scope,
    ScopeProvider,
)

_TYPING = "TYPE_CHECKING"

Span = tuple[int, int, int, str]
"""A line, the half-open range of a name's columns in it, and text to insert before the new name."""


@dataclass(frozen=True)
class Variable:
    """A variable of a module, function or class.

    An attribute stands for `self.<name>` in all methods of a class, and for what its body defines by that name.
    Functions of one name, as the overloads of one, have their variables in common.
    """

    kind: str
    scope: str
    name: str


def variables(text: str) -> Mapping[Variable, list[Span]]:
    """Find the variables of a module that can be renamed, each with every occurrence of its name."""
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    where = wrapper.resolve(PositionProvider)
    found: dict[Variable, list[Span]] = {}
    tree, lines = ast.parse(text), text.split("\n")
    barred = {name for node in ast.walk(tree) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}

    def span(node: cst.CSTNode, before: str = "") -> Span:
        code = where[node]
        return (code.start.line, code.end.column if before else code.start.column, code.end.column, before)

    for scope in {scope for scope in wrapper.resolve(ScopeProvider).values() if scope}:
        kind = {GlobalScope: "module", FunctionScope: "local"}.get(type(scope))
        if kind is None:
            continue
        by_name: dict[str, list[BaseAssignment]] = {}
        for assignment in scope.assignments:
            by_name.setdefault(assignment.name, []).append(assignment)
        for name in by_name.keys() - barred:
            spans = _spans(by_name[name], name, span)
            if spans and not name.startswith("__") and "." not in name:
                found.setdefault(Variable(kind, _qualified(scope), name), []).extend(spans)
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for name, spans in _attributes(owner, lines).items():
            found.setdefault(Variable("attribute", owner.name, name), []).extend(spans)
    return {variable: sorted(set(spans)) for variable, spans in found.items()}


def _attributes(owner: ast.ClassDef, lines: Sequence[str]) -> Mapping[str, list[Span]]:
    """Find the attributes that the methods of a class read or set, each with every occurrence of its name."""
    found: dict[str, list[Span]] = {}
    for node in ast.walk(owner):
        match node:
            case ast.Attribute(value=ast.Name("self"), attr=name, end_lineno=int(line), end_col_offset=int(column)) if (
                not name.startswith("__")
            ):
                end = len(lines[line - 1].encode()[:column].decode())
                found.setdefault(name, []).append((line, end - len(name), end, ""))
    for node in owner.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name in found:
                start = lines[node.lineno - 1].index(f" {name}(") + 1
                found[name].append((node.lineno, start, start + len(name), ""))
                for each in node.decorator_list:
                    if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == name:
                        found[name].append((each.lineno, each.col_offset, each.col_offset + len(name), ""))
            case ast.AnnAssign(target=ast.Name(id=name) as target) | ast.Assign(targets=[ast.Name(id=name) as target]):
                if name in found:
                    found[name].append((target.lineno, target.col_offset, target.col_offset + len(name), ""))
    return found


def _spans(assignments: list[BaseAssignment], name: str, span: Callable[..., Span]) -> list[Span]:
    """Return all occurrences of a name; none if one of them cannot be renamed."""
    spans: list[Span] = []
    for assignment in assignments:
        target = _target(assignment, name) if isinstance(assignment, Assignment) else None
        accesses = [access.node for access in assignment.references if _sees(access, assignment)]
        if target is None or not all(isinstance(node, cst.Name) for node in accesses):
            return []
        spans += [span(*target), *map(span, accesses)]
    return sorted(set(spans))


def _sees(access: Access, assignment: BaseAssignment) -> bool:
    """Whether a name can refer to an assignment of it.

    libcst adds the assignments of outer scopes to what is read in a function before a further assignment there. To
    Python, a name that a function binds anywhere is its own.
    """
    scope = access.scope
    while scope is not assignment.scope and not isinstance(scope, GlobalScope):
        if isinstance(scope, FunctionScope) and assignment.name in {each.name for each in scope.assignments}:
            return False
        scope = scope.parent
    return True


def _target(assignment: Assignment, name: str) -> tuple[cst.CSTNode, str] | tuple[cst.CSTNode] | None:
    """Find the node that holds the name in an assignment; an import's name is followed by ` as <new>`."""
    match assignment.node:
        case cst.Name() as node:
            return (node,)
        case cst.Param(name=cst.Name() as inner) | cst.FunctionDef(name=inner) | cst.ClassDef(name=inner):
            return (inner,)
        case cst.Import(names=names) | cst.ImportFrom(names=[*_] as names):
            for alias in names:
                if alias.evaluated_alias == name and alias.asname:
                    return (alias.asname.name,)
                if alias.evaluated_alias is None and alias.evaluated_name == name:
                    return (alias.name, " as ")
    return None


def typing_only(text: str) -> set[str]:
    """Return the names of a module that only blocks below `if TYPE_CHECKING` bind, which never run."""
    tree = ast.parse(text)
    tree.body = [stmt for stmt in tree.body if not (isinstance(stmt, ast.If) and ast.unparse(stmt.test) == _TYPING)]
    return _bound(text) - _bound(ast.unparse(tree))


def _bound(text: str) -> set[str]:
    symbols = symtable(text, "module", "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}


def _qualified(scope: Scope) -> str:
    names = []
    while not isinstance(scope, GlobalScope):
        names.append(getattr(scope, "name", None) or "<lambda>")
        scope = scope.parent
    return ".".join(reversed(names))


def renamed(text: str, spans: list[Span], new: str) -> str:
    """Replace every occurrence by the new name."""
    lines = text.split("\n")
    for line, start, end, before in sorted(spans, reverse=True):
        row = lines[line - 1]
        lines[line - 1] = row[:start] + before + new + row[end:]
    return "\n".join(lines)
