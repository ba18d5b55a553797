"""Compare and walk Python's syntax trees. Layout, comments, quotes and redundant parentheses are not in them.

A path leads from the module to a node by steps of a field and an index, -1 if the field holds one node.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

Step: TypeAlias = tuple[str, int]
Path: TypeAlias = tuple[Step, ...]

BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")
"""The fields that hold blocks, in the order of the source."""

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


def is_hole(node: object) -> bool:
    """Whether a node of a pattern is `...`, as a statement or as an entry of a list."""
    if isinstance(node, ast.Expr):
        node = node.value
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _same_run(pattern: Sequence[object], found: Sequence[object], *, holes: bool) -> bool:
    for index, one in enumerate(pattern):
        if holes and is_hole(one):
            rest = pattern[index + 1 :]
            return any(_same_run(rest, found[start:], holes=True) for start in range(index, len(found) + 1))
        if index == len(found) or not _same(one, found[index], holes=holes):
            return False
    return len(pattern) == len(found)


def _same_arguments(pattern: ast.Call, found: ast.Call, *, holes: bool) -> bool:
    """Compare the arguments of calls: positional ones in order, keywords by name."""
    if not _same_run(pattern.args, found.args, holes=holes):
        return False
    if len(pattern.keywords) != len(found.keywords) and not (holes and any(map(is_hole, pattern.args))):
        return False
    return all(
        any(one.arg == other.arg and _same(one.value, other.value, holes=holes) for other in found.keywords)
        for one in pattern.keywords
    )


def _same(pattern: Any, found: Any, *, holes: bool) -> bool:
    kind: Any = type(pattern)
    if kind is list:
        return type(found) is list and _same_run(pattern, found, holes=holes)
    if not issubclass(kind, ast.AST):
        return kind is type(found) and bool(pattern == found)
    if holes and is_hole(pattern) and isinstance(found, ast.expr):
        return True
    if kind is not type(found):
        return False
    if kind is ast.Call:
        return _same(pattern.func, found.func, holes=holes) and _same_arguments(pattern, found, holes=holes)
    if kind is ast.Subscript and type(pattern.slice) is type(found.slice) is ast.Tuple:
        mine, theirs = pattern.slice.elts, found.slice.elts  # each `...` stands for one of these
        return (
            len(mine) == len(theirs)
            and _same(pattern.value, found.value, holes=holes)
            and all(_same(one, other, holes=holes) for one, other in zip(mine, theirs, strict=True))
        )
    return all(_same(getattr(pattern, name), getattr(found, name), holes=holes) for name in significant(kind))


def same(pattern: ast.AST, found: ast.AST) -> bool:
    """Whether two pieces of code are the same to Python's parser, but for the order of keywords in calls."""
    return _same(pattern, found, holes=False)


def matches(pattern: ast.AST, found: ast.AST) -> bool:
    """Whether `found` matches `pattern`; as in Semgrep, `...` is any expression, run of arguments or of statements."""
    return _same(pattern, found, holes=True)


def matches_run(pattern: Sequence[ast.AST], found: Sequence[ast.AST]) -> bool:
    """Whether a block of statements matches; `...` is any run of them."""
    return _same_run(pattern, found, holes=True)


def same_header(pattern: ast.AST, found: ast.AST) -> bool:
    """Whether `found` matches `pattern`, their blocks aside."""
    return type(pattern) is type(found) and all(
        _same(getattr(pattern, name), getattr(found, name), holes=True)
        for name in significant(type(pattern))
        if name not in BLOCKS
    )


def fingerprint(node: ast.AST) -> str:
    """Return 16 hexadecimal digits that are equal if and, in practice, only if two nodes are the `same`."""

    def spell(value: object) -> str:
        if isinstance(value, ast.AST):
            names = (name for name in significant(type(value)) if name != "type_params" or getattr(value, name))
            return f"{type(value).__name__}({','.join(spell(getattr(value, name)) for name in names)})"
        return f"[{','.join(map(spell, value))}]" if isinstance(value, list) else repr(value)

    return hashlib.sha256(spell(node).encode()).hexdigest()[:16]


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
    """Yield what `walk` does, without the pieces of text in f-strings."""
    todo = [spot] if spot.block == "body" else within(spot)
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
