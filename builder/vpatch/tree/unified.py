"""Unified diffs, as `patch` and `git apply` read them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


def unified(file: str, old: bytes | None, new: bytes | None) -> list[str]:
    """Return the diff of a file as lines without newline; None is a file that does not exist.

    Bytes that are not UTF-8 are surrogate escapes.
    """
    import difflib

    source = f"a/{file}" if old is not None else "/dev/null"
    target = f"b/{file}" if new is not None else "/dev/null"
    found: list[str] = []
    for line in difflib.unified_diff(_lines(old or b""), _lines(new or b""), source, target):
        found += [line[:-1]] if line.endswith("\n") else [line, "\\ No newline at end of file"]
    return found


def _lines(data: bytes) -> list[str]:
    """Split where `patch` does, and in a way that gives the same bytes back."""
    *lines, last = data.decode("utf-8", "surrogateescape").split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def headed(diff: Iterable[str], old: bytes, new: bytes) -> list[str]:
    """Return the diff of a module with the function or class of each hunk's first change on the hunk's header.

    git guesses it from the line of the last `def` above the hunk; here it is the one that encloses the change.
    """
    lines, header, before, after = list(diff), -1, 0, 0
    scopes = {"-": [*_scopes(ast.parse(old))], "+": [*_scopes(ast.parse(new))]}
    for index, line in enumerate(lines):
        if hunk := _HUNK.fullmatch(line):
            header, before, after = index, int(hunk[1]), int(hunk[2])
        elif header >= 0 and line[:1] in scopes and line[1:].strip():
            at = before if line[0] == "-" else after
            # Whoever adds a function changes what is around it.
            around = [s.name for s in scopes[line[0]] if s.first + (line[0] == "+") <= at <= s.last]
            lines[header] = " ".join([lines[header], *around[-1:]])
            header = -1
        else:
            before += line[:1] in {" ", "-"}
            after += line[:1] in {" ", "+"}
    return lines


class _Scope(NamedTuple):
    first: int  # its first line, that of a decorator if it has one
    last: int
    name: str


def _scopes(node: ast.AST, prefix: str = "") -> Iterator[_Scope]:
    """Yield the functions and classes below a node, each before those in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            kind, name = "class" if isinstance(child, ast.ClassDef) else "def", f"{prefix}{child.name}"
            first = min(one.lineno for one in (child, *child.decorator_list))
            yield _Scope(first, child.end_lineno or first, f"{kind} {name}")
            yield from _scopes(child, f"{name}.")
        elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):  # no expression has one
            yield from _scopes(child, prefix)
