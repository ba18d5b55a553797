"""Syntax trees compared, walked and changed: whitespace, comments and redundant parentheses never count.

A place in a tree is a path of (field, index) steps from its root, index -1 where the field holds one node. A change
rebuilds only the nodes along the path; a visitor over the whole file would cost as much as parsing it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import TypeAlias

from vpatch import cst

Step: TypeAlias = tuple[str, int]
Path: TypeAlias = tuple[Step, ...]

# Fields that only lay code out; the ones that libcst names whitespace_* come on top.
_LAYOUT = frozenset(
    (
        *("leading_lines", "lines_after_decorators", "trailing_whitespace", "header", "footer", "indent"),
        *("lpar", "rpar", "lbracket", "rbracket", "comma", "semicolon", "colon", "first_colon", "second_colon"),
        *("dot", "equal", "encoding", "default_indent", "default_newline", "has_trailing_newline"),
    )
)


@dataclass(frozen=True)
class Spot:
    """A node and its path from the root of its module."""

    path: Path
    node: cst.CSTNode


@cache
def significant(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """Give the fields of a node class that carry meaning."""
    names = (f.name for f in fields(kind))
    return tuple(n for n in names if n not in _LAYOUT and not n.startswith(("whitespace", "_")))


def statements(block: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """Give a block's statements one by one, however they were laid out on lines."""
    flat: list[cst.CSTNode] = []
    for line in getattr(block, "body", ()):
        flat.extend(line.body if isinstance(line, cst.SimpleStatementLine) else (line,))
    return flat


def _is_block(node: object) -> bool:
    return isinstance(node, cst.IndentedBlock | cst.SimpleStatementSuite | cst.SimpleStatementLine)


def _is_hole(node: object) -> bool:
    match node:
        case cst.Expr(value=value) | cst.Arg(value=value, keyword=None, star="") | cst.Element(value=value):
            return isinstance(value, cst.Ellipsis)
        case _:
            return False


def _same_run(pattern: Sequence[object], found: Sequence[object], *, holes: bool) -> bool:
    if holes and pattern and _is_hole(pattern[0]):
        return any(_same_run(pattern[1:], found[i:], holes=holes) for i in range(len(found) + 1))
    if not pattern or not found:
        return not pattern and not found
    return _same(pattern[0], found[0], holes=holes) and _same_run(pattern[1:], found[1:], holes=holes)


def _same(pattern: object, found: object, *, holes: bool) -> bool:
    if not isinstance(pattern, cst.CSTNode):
        if isinstance(pattern, list | tuple) and isinstance(found, list | tuple):
            return _same_run(pattern, found, holes=holes)
        return pattern == found
    if holes and isinstance(pattern, cst.Ellipsis) and isinstance(found, cst.BaseExpression):
        return True
    if isinstance(pattern, cst.SimpleString | cst.ConcatenatedString) and isinstance(
        found, cst.SimpleString | cst.ConcatenatedString
    ):
        value = pattern.evaluated_value
        if value is not None or found.evaluated_value is not None:
            return value == found.evaluated_value
    if _is_block(pattern) and _is_block(found):
        return _same_run(statements(pattern), statements(found), holes=holes)  # type: ignore[arg-type]
    if type(pattern) is not type(found):
        return False
    return all(_same(getattr(pattern, f), getattr(found, f), holes=holes) for f in significant(type(pattern)))


def same(pattern: cst.CSTNode | Sequence[cst.CSTNode], found: cst.CSTNode | Sequence[cst.CSTNode]) -> bool:
    """Tell whether two pieces of code mean the same to Python's parser."""
    return _same(pattern, found, holes=False)


def matches(pattern: cst.CSTNode | Sequence[cst.CSTNode], found: cst.CSTNode | Sequence[cst.CSTNode]) -> bool:
    """Tell whether `found` is an instance of `pattern`.

    As in Semgrep, `...` in the pattern stands for any expression, any run of arguments or any run of statements.
    """
    return _same(pattern, found, holes=True)


def fingerprint(node: cst.CSTNode) -> str:
    """Give 16 hexadecimal digits that two nodes share if, and in practice only if, they are the `same`."""

    def spell(value: object) -> str:
        if isinstance(value, cst.SimpleString | cst.ConcatenatedString) and value.evaluated_value is not None:
            return repr(value.evaluated_value)
        if _is_block(value):
            return spell(statements(value))  # type: ignore[arg-type]
        if isinstance(value, cst.CSTNode):
            return f"{type(value).__name__}({','.join(spell(getattr(value, f)) for f in significant(type(value)))})"
        if isinstance(value, list | tuple):
            return f"[{','.join(map(spell, value))}]"
        return repr(value)

    return hashlib.sha256(spell(node).encode()).hexdigest()[:16]


def steps(node: cst.CSTNode) -> Iterator[tuple[Step, cst.CSTNode]]:
    """Give the meaningful children of `node`, each with the step that leads to it."""
    for name in significant(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield (name, -1), value
        elif isinstance(value, list | tuple):
            for index, child in enumerate(value):
                if isinstance(child, cst.CSTNode):
                    yield (name, index), child


def walk(spot: Spot) -> Iterator[Spot]:
    """Give `spot` and every meaningful node below it, outermost first."""
    todo = [spot]
    while todo:
        here = todo.pop()
        yield here
        todo.extend(reversed([Spot((*here.path, step), child) for step, child in steps(here.node)]))


def along(root: cst.CSTNode, path: Path) -> list[cst.CSTNode]:
    """Give the nodes that `path` passes, `root` first and its target last."""
    nodes = [root]
    for name, index in path:
        value = getattr(nodes[-1], name)
        nodes.append(value if index < 0 else value[index])
    return nodes


def splice(root: cst.Module, path: Path, new: Sequence[cst.CSTNode]) -> cst.Module:
    """Put `new` in the place of the node at `path`: any number of nodes in a sequence, exactly one elsewhere."""
    nodes = along(root, path)
    fresh = list(new)
    for parent, (name, index) in zip(reversed(nodes[:-1]), reversed(path), strict=True):
        if index < 0:
            (only,) = fresh
            value: object = only
        else:
            value = [*(old := getattr(parent, name))[:index], *fresh, *old[index + 1 :]]
        fresh = [parent.with_changes(**{name: value})]
    (module,) = fresh
    assert isinstance(module, cst.Module)  # noqa: S101 - the type of `root`, which mypy cannot follow
    return module
