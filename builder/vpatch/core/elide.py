"""Leave out of a module, before it is parsed, the bodies of functions that nobody looks into.

Parsing is most of a run's time, and an overlay looks into two or three functions of a file of thousands of lines. The
body of every other function gives way to a string with as many lines, and comes back byte by byte.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from vpatch.core import nesting

_LABEL = "vpatch:elided:"
_PLACE = re.compile(rf'"""{_LABEL}(\d+)[\r\n]*"""')

Reach = Collection[str]
"""Qualified names: the code in and below them is looked at. "" stands for the whole module."""


def elide(data: bytes, reach: Reach) -> tuple[bytes, tuple[str, ...]]:
    """Return a module without the bodies that lie outside `reach`, line numbers kept, and those bodies.

    Nothing is left out of what Python itself cannot parse.

    Raises:
        Refused: libcst must not see the module, for what is in a body that stays or in one that goes.
    """
    try:
        text, encoding = nesting.decode(data)
        tree = nesting.parse(text)
    except (SyntaxError, ValueError, LookupError):
        return data, ()
    if "" in reach:
        return data, ()
    if _LABEL in text or re.search(r"\r(?!\n)|\x0c", text):
        return data, ()  # the lines that Python counts would not be those of split("\n")
    lines = text.split("\n")
    kept: list[str] = []
    bodies: list[str] = []
    done = 0
    for first, last in _bodies(tree.body, (), reach, lines):
        body = "\n".join(lines[first:last])
        indent = body[: len(body) - len(body.lstrip(" \t"))]
        kept += [*lines[done:first], f'{indent}"""{_LABEL}{len(bodies)}' + "\n" * (last - first - 1) + '"""']
        bodies.append(body.removesuffix("\r"))
        if body.endswith("\r"):
            kept[-1] += "\r"
        done = last
    return "\n".join([*kept, *lines[done:]]).encode(encoding), tuple(bodies)


def restore(data: bytes, bodies: Sequence[str], encoding: str) -> bytes:
    """Put the bodies that `elide` gave back into what was made of the rest."""
    if not bodies:
        return data
    text = data.decode(encoding)
    return _PLACE.sub(lambda found: bodies[int(found[1])].lstrip(" \t"), text).encode(encoding)


def _bodies(
    block: Sequence[ast.AST], parents: tuple[str, ...], reach: Reach, lines: Sequence[str]
) -> Iterator[tuple[int, int]]:
    """Give the lines, from the first to behind the last, of each body that can go, in order."""
    for node in block:
        if isinstance(node, ast.ClassDef):
            yield from _bodies(node.body, (*parents, node.name), reach, lines)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not _looked_at((*parents, node.name), reach) and (span := _span(node, lines)):
                yield span
        else:
            for field in ("body", "handlers", "orelse", "finalbody", "cases"):
                yield from _bodies(getattr(node, field, ()), parents, reach, lines)


def _looked_at(name: tuple[str, ...], reach: Reach) -> bool:
    """Tell whether a definition lies in or above what is looked at."""
    wanted = (tuple(scope.split(".")) for scope in reach)
    return any(scope[: len(name)] == name or name[: len(scope)] == scope for scope in wanted)


def _span(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: Sequence[str]) -> tuple[int, int] | None:
    """Give a body's lines, None where it begins on the line of its header."""
    head = node.body[0]
    first = min([head.lineno, *(decorator.lineno for decorator in getattr(head, "decorator_list", ()))]) - 1
    before = lines[first].encode()[: head.col_offset]
    # Bytes, since that is how Python counts columns; a decorator's line has an @ there.
    return (first, node.body[-1].end_lineno or first) if not before.strip(b" \t@") else None
