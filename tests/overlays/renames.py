"""Consistent renames, as an upstream refactoring would make them: all occurrences of one variable, and no others.

libcst's `ScopeProvider`, not the engine under test, decides which occurrences belong to one variable.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import (
    Assignment,
    BaseAssignment,
    FunctionScope,
    GlobalScope,
    MetadataWrapper,
    PositionProvider,
    Scope,
    ScopeProvider,
)

Span = tuple[int, int, int, str]
"""A line, the half-open range of a name's columns in it, and text to insert before the new name."""


@dataclass(frozen=True)
class Variable:
    """A variable of a module, function or class; an attribute stands for `self.<name>` in all methods of a class."""

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
                found[Variable(kind, _qualified(scope), name)] = spans
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(owner):
            match node:
                case ast.Attribute(value=ast.Name("self"), attr=name, end_lineno=int(line), end_col_offset=int(column)):
                    end = len(lines[line - 1].encode()[:column].decode())
                    variable = Variable("attribute", owner.name, name)
                    found.setdefault(variable, []).append((line, end - len(name), end, ""))
    return found


def _spans(assignments: list[BaseAssignment], name: str, span: Callable[..., Span]) -> list[Span]:
    """Return all occurrences of a name; none if one of them cannot be renamed."""
    spans: list[Span] = []
    for assignment in assignments:
        target = _target(assignment, name) if isinstance(assignment, Assignment) else None
        accesses = [access.node for access in assignment.references]
        if target is None or not all(isinstance(node, cst.Name) for node in accesses):
            return []
        spans += [span(*target), *map(span, accesses)]
    return sorted(set(spans))


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
