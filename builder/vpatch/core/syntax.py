"""Compare, walk and change libcst's trees. Whitespace, comments and redundant parentheses never count.

A path leads from the root to a node by steps of a field and an index, -1 if the field holds one node. A change rebuilds
only the nodes along the path: a visitor would take as long as parsing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import NamedTuple, TypeAlias, TypeGuard

from vpatch.core import cst

Step: TypeAlias = tuple[str, int]
Path: TypeAlias = tuple[Step, ...]

# Fields of layout, beside those that begin with whitespace_.
_LAYOUT = frozenset(
    (
        *("leading_lines", "lines_after_decorators", "trailing_whitespace", "header", "footer", "indent"),
        *("lpar", "rpar", "lbracket", "rbracket", "comma", "semicolon", "colon", "first_colon", "second_colon"),
        *("dot", "equal", "encoding", "default_indent", "default_newline", "has_trailing_newline"),
    )
)


class Spot(NamedTuple):
    """A node and its path from the root of its module."""

    path: Path
    node: cst.CSTNode


# The fields that hold blocks, in the order of the source, of libcst's nodes and of Python's.
BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")

# Fields that hold a name but no expression: of attributes, keywords, parameters, definitions and imports.
_NAMES = frozenset({"attr", "keyword", "module", "name"})


_node_classes: dict[type, bool] = {}


def is_node(value: object) -> TypeGuard[cst.CSTNode]:
    """Whether a value is a node. `isinstance` is much slower, since nodes have an abstract base class."""
    known = _node_classes.get(type(value))
    if known is None:
        known = _node_classes[type(value)] = isinstance(value, cst.CSTNode)
    return known


def kind_of(node: object) -> type:
    """Return a node's class; `BaseString` for a string literal, concatenated or not."""
    return cst.BaseString if type(node) in (cst.SimpleString, cst.ConcatenatedString) else type(node)


def _is_block(kind: type) -> bool:
    return kind in (cst.IndentedBlock, cst.SimpleStatementSuite, cst.SimpleStatementLine)


@cache
def significant(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """Return the fields of a node class that carry meaning."""
    names = (f.name for f in fields(kind))
    return tuple(n for n in names if n not in _LAYOUT and not n.startswith(("whitespace", "_")))


def statements(block: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """Return a block's statements, whether or not they share lines."""
    flat: list[cst.CSTNode] = []
    for line in getattr(block, "body", ()):
        flat.extend(line.body if type(line) is cst.SimpleStatementLine else (line,))
    return flat


def evaluated(node: object) -> str | bytes | None:
    """Return the value of a string literal, concatenated or not; None for anything else."""
    return node.evaluated_value if isinstance(node, cst.SimpleString | cst.ConcatenatedString) else None


def _is_hole(node: object) -> bool:
    match node:
        case cst.Expr(value=value) | cst.Arg(value=value, keyword=None, star="") | cst.Element(value=value):
            return isinstance(value, cst.Ellipsis)
        case _:
            return False


def _same_run(pattern: Sequence[object], found: Sequence[object], *, holes: bool) -> bool:
    for index, one in enumerate(pattern):
        if holes and _is_hole(one):
            rest = pattern[index + 1 :]
            return any(_same_run(rest, found[start:], holes=True) for start in range(index, len(found) + 1))
        if index == len(found) or not _same(one, found[index], holes=holes):
            return False
    return len(pattern) == len(found)


def _same(pattern: object, found: object, *, holes: bool) -> bool:
    if not is_node(pattern):
        if isinstance(pattern, list | tuple) and isinstance(found, list | tuple):
            return _same_run(pattern, found, holes=holes)
        return pattern == found
    kind, other = type(pattern), type(found)
    if holes and kind is cst.Ellipsis and isinstance(found, cst.BaseExpression):
        return True
    if kind_of(pattern) is cst.BaseString is kind_of(found):
        value = evaluated(pattern)
        if value is not None or evaluated(found) is not None:
            return value == evaluated(found)
    if _is_block(kind) and _is_block(other):
        return _same_run(statements(pattern), statements(found), holes=holes)  # type: ignore[arg-type]
    return kind is other and all(
        _same(getattr(pattern, name), getattr(found, name), holes=holes) for name in significant(kind)
    )


def same(pattern: cst.CSTNode | Sequence[cst.CSTNode], found: cst.CSTNode | Sequence[cst.CSTNode]) -> bool:
    """Whether two pieces of code are the same to Python's parser."""
    return _same(pattern, found, holes=False)


def matches(pattern: cst.CSTNode | Sequence[cst.CSTNode], found: cst.CSTNode | Sequence[cst.CSTNode]) -> bool:
    """Whether `found` matches `pattern`; as in Semgrep, `...` is any expression, run of arguments or of statements."""
    return _same(pattern, found, holes=True)


def fingerprint(node: cst.CSTNode) -> str:
    """Return 16 hexadecimal digits that are equal if and, in practice, only if two nodes are the `same`."""

    def spell(value: object) -> str:
        if is_node(value):
            kind = type(value)
            if kind_of(value) is cst.BaseString and (text := evaluated(value)) is not None:
                return repr(text)
            if _is_block(kind):
                return spell(statements(value))
            return f"{kind.__name__}({','.join(spell(getattr(value, name)) for name in significant(kind))})"
        if isinstance(value, list | tuple):
            return f"[{','.join(map(spell, value))}]"
        return repr(value)

    import hashlib

    return hashlib.sha256(spell(node).encode()).hexdigest()[:16]


def steps(node: cst.CSTNode, names: Sequence[str] | None = None) -> list[tuple[Step, cst.CSTNode]]:
    """List the children of `node` in the fields `names`, by default all significant ones, each with its step."""
    found: list[tuple[Step, cst.CSTNode]] = []
    for name in significant(type(node)) if names is None else names:
        value = getattr(node, name, None)
        if is_node(value):
            found.append(((name, -1), value))
        elif isinstance(value, list | tuple):
            found += [((name, index), child) for index, child in enumerate(value) if is_node(child)]
    return found


def walk(spot: Spot, below: Callable[[cst.CSTNode], list[tuple[Step, cst.CSTNode]]] = steps) -> Iterator[Spot]:
    """Yield `spot` and every significant node below it, outermost first."""
    todo = [spot]
    while todo:
        here = todo.pop()
        yield here
        todo.extend(reversed([Spot((*here.path, step), child) for step, child in below(here.node)]))


def evaluated_steps(node: cst.CSTNode) -> list[tuple[Step, cst.CSTNode]]:
    """List the children of `node`, but not what only looks like an expression: a bound name, a piece of a string."""
    joined = type(node) is cst.ConcatenatedString
    return [
        (step, child)
        for step, child in steps(node)
        if step[0] not in _NAMES and not (joined and kind_of(child) is cst.BaseString)
    ]


def along(root: cst.CSTNode, path: Path) -> list[cst.CSTNode]:
    """Return the nodes along `path`, the root first."""
    nodes = [root]
    for name, index in path:
        value = getattr(nodes[-1], name)
        nodes.append(value if index < 0 else value[index])
    return nodes


def splice(root: cst.Module, path: Path, new: Sequence[cst.CSTNode]) -> cst.Module:
    """Replace the node at `path` by `new`: any number of nodes in a sequence, exactly one elsewhere."""
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
