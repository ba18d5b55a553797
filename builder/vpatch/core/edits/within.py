"""What changes within a statement: expressions, entries of calls and literals, headers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, TypeAlias

from vpatch.core.matching import differing_pieces, spelled
from vpatch.core.syntax import DEFINITIONS, header_fields

Entries: TypeAlias = Sequence[Any]


def header_differs(one: Any, other: Any) -> bool:
    """Whether two statements of one kind differ in more than their blocks."""
    if isinstance(one, DEFINITIONS):
        return bool(differing_pieces(one, other))
    return any(spelled(getattr(one, name)) != spelled(getattr(other, name)) for name in header_fields(one))


@dataclass(frozen=True, eq=False)
class Within:
    """A change within an expression or a statement's header.

    `kind` is "swap" for the expression `old` by `new`, "come" for the entry `new` of the list of `old`, in front of its
    entry number `index`, and "go" for that entry itself.
    """

    kind: str
    old: Any
    new: Any
    index: int = 0


def entries(node: Any) -> list[Any] | None:
    """Return the entries of a call or a literal in the order of the code; None for other nodes."""
    match node:
        case ast.Call():
            return sorted((*node.args, *node.keywords), key=lambda one: (one.lineno, one.col_offset))
        case ast.List() | ast.Tuple() | ast.Set():
            return list(node.elts)
        case ast.Dict():
            return [*zip(node.keys, node.values, strict=True)]
    return None


def changes(old: Any, new: Any) -> Iterator[Within]:
    """Yield what changes between two nodes, as deep within as it can be said.

    Raises:
        LookupError: something that is no expression differs.
    """
    if spelled(old) == spelled(new):
        return
    mine, theirs = entries(old), entries(new)
    match old, new:
        case ast.Subscript(slice=ast.Tuple(elts=some)), ast.Subscript(slice=ast.Tuple(elts=other)) if len(some) != len(
            other
        ):
            yield Within("swap", old, new)  # its indices are no list
            return
    if mine is not None and theirs is not None and type(old) is type(new):
        if isinstance(old, ast.Call):
            yield from changes(old.func, new.func)
        yield from _changed_entries(old, mine, theirs)
        return
    if type(old) is type(new) and (names := _differing(old, new)) is not None:
        for name in names:
            one, other = getattr(old, name), getattr(new, name)
            for x, y in zip(*((v if isinstance(v, list) else [v]) for v in (one, other)), strict=True):
                yield from changes(x, y)
        return
    if not (isinstance(old, ast.expr) and isinstance(new, ast.expr)):
        raise LookupError
    yield Within("swap", old, new)


def _differing(old: Any, new: Any) -> list[str] | None:
    """Return the fields in which two nodes differ, None if one of them holds no nodes, or another number of them."""
    names = [name for name in header_fields(old) if spelled(getattr(old, name)) != spelled(getattr(new, name))]
    for name in names:
        one, other = getattr(old, name), getattr(new, name)
        if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            continue
        if not (isinstance(one, ast.AST) and isinstance(other, ast.AST)):
            return None
    return names


def _changed_entries(owner: Any, old: Entries, new: Entries) -> Iterator[Within]:
    was, now = ([spelled(list(one) if isinstance(one, tuple) else one) for one in some] for some in (old, new))
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        if tag == "replace" and i2 - i1 == j2 - j1:
            for k, x, y in zip(range(i1, i2), old[i1:i2], new[j1:j2], strict=True):
                yield from _changed_entry(owner, k, x, y)
        elif tag != "equal":
            yield from (Within("go", owner, None, k) for k in range(i1, i2))
            yield from (Within("come", owner, y, i1) for y in new[j1:j2])


def _changed_entry(owner: Any, index: int, old: Any, new: Any) -> Iterator[Within]:
    if isinstance(old, tuple):
        for x, y in zip(old, new, strict=True):
            if (x is None) != (y is None):
                raise LookupError
            yield from changes(x, y) if x is not None else ()
    elif isinstance(old, ast.keyword) and isinstance(new, ast.keyword) and old.arg == new.arg:
        yield from changes(old.value, new.value)
    elif isinstance(old, ast.keyword) or isinstance(new, ast.keyword):
        yield Within("go", owner, None, index)
        yield Within("come", owner, new, index)
    else:
        yield from changes(old, new)


def expressible(old: Any, new: Any) -> bool:
    """Whether all that changes between two nodes are expressions and entries."""
    try:
        list(changes(old, new))
    except LookupError:
        return False
    return True
