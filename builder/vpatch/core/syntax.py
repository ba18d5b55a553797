"""Compare and walk Python's syntax trees. Layout, comments, quotes and redundant parentheses are not in them.

A path leads from the module to a node by steps of a field and an index, -1 if the field holds one node.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

Step: TypeAlias = tuple[str, int]
Path: TypeAlias = tuple[Step, ...]

BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")
"""The fields that hold blocks, in the order of the source."""

DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

# Whether a name is read or bound, the prefix of `u"..."`, and comments on types.
_LAYOUT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


class Spot(NamedTuple):
    """A node, its path from its module, and which of its blocks counts, if it has several."""

    path: Path
    node: Any  # an ast.AST; its fields depend on its class
    block: str = "body"


_significant: dict[type, tuple[str, ...]] = {}


def significant(kind: type[ast.AST]) -> tuple[str, ...]:
    """Return the fields of a node class that carry meaning."""
    if kind not in _significant:
        _significant[kind] = tuple(name for name in kind._fields if name not in _LAYOUT)
    return _significant[kind]


def steps(node: ast.AST, names: Sequence[str] | None = None) -> list[tuple[Step, ast.AST]]:
    """List the children of `node` in the fields `names`, by default all significant ones, each with its step."""
    found: list[tuple[Step, ast.AST]] = []
    for name in significant(type(node)) if names is None else names:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(((name, -1), value))
        elif isinstance(value, list):
            found += [((name, index), child) for index, child in enumerate(value) if isinstance(child, ast.AST)]
    return found


def walk(spot: Spot, names: Sequence[str] | None = None) -> Iterator[Spot]:
    """Yield `spot` and every node below it in the fields `names`, by default all; of a block, what stands in it."""
    todo = [spot] if spot.block == "body" else list(reversed(within(spot)))
    while todo:
        here = todo.pop()
        yield here
        todo.extend(reversed([Spot((*here.path, step), child) for step, child in steps(here.node, names)]))


def evaluated(spot: Spot) -> Iterator[Spot]:
    """Yield what `walk` does, without the pieces of text in f-strings; of a statement with a block, only the block."""
    todo = (
        within(spot)
        if spot.block != "body" or (has_block(spot.node) and not isinstance(spot.node, ast.Module | DEFINITIONS))
        else [spot]
    )
    while todo:
        here = todo.pop()
        yield here
        path, node = here.path, here.node
        pieces = type(node) is ast.JoinedStr
        for name in reversed(significant(type(node))):
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                todo.append(Spot((*path, (name, -1)), value))
            elif type(value) is list:
                for index in range(len(value) - 1, -1, -1):
                    child = value[index]
                    if isinstance(child, ast.AST) and not (pieces and type(child) is ast.Constant):
                        todo.append(Spot((*path, (name, index)), child))


def has_block(node: ast.AST) -> bool:
    """Whether a statement, handler or case has a block."""
    return any(name in BLOCKS for name in node._fields) and not isinstance(node, ast.expr)


def header_fields(node: ast.AST) -> list[str]:
    """Return the fields that carry meaning, without blocks: the `body` of a conditional expression is none."""
    return [name for name in significant(type(node)) if name not in BLOCKS or not has_block(node)]


def behind_docstring(here: Sequence[Spot]) -> int:
    """Return the index of the first statement of a block, its docstring aside."""
    match here:
        case [Spot(node=ast.Expr(value=ast.Constant(value=str()))), *_]:
            return 1
    return 0


def within(spot: Spot) -> list[Spot]:
    """List the statements directly in the block of `spot`."""
    return [Spot((*spot.path, step), child) for step, child in steps(spot.node, [spot.block])]


def along(root: ast.AST, path: Path) -> list[Any]:
    """Return the nodes along `path`, the root first."""
    nodes: list[Any] = [root]
    for name, index in path:
        value = getattr(nodes[-1], name)
        nodes.append(value if index < 0 else value[index])
    return nodes


def inside(path: Path, other: Path) -> bool:
    """Whether `path` is `other` or lies below it."""
    return path[: len(other)] == other
