"""Write a statement within which something changes, line by line, with `...` for entries that stay."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from vpatch.core.edits.within import entries, expressible
from vpatch.core.parse import end_line, first_line
from vpatch.core.syntax import has_block

_ALIKE = 0.6
"""Two statements with so large a part of their lines in common are one that changes."""

Rows = list[str]
"""Lines of a hunk, each with its sign."""


def is_edited(old: Any, new: Any, was: Sequence[str], now: Sequence[str]) -> bool:
    """Whether a simple statement changes within, so that its other lines are context."""
    return (
        type(old) is type(new)
        and not has_block(old)
        and len(was) > 1
        and len(now) > 1
        and expressible(old, new)
        and SequenceMatcher(None, was, now, autojunk=False).ratio() >= _ALIKE
    )


def edited(node: Any, was: Sequence[str], now: Sequence[str]) -> Rows:
    """Return the lines of a statement that changes within.

    Args:
        node: the statement before.
        was: its lines before, moved to the left.
        now: its lines after.
    """
    rows: Rows = []
    row_of: list[int] = []  # by line before
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        went = was[i1:i2]
        row_of += range(len(rows), len(rows) + len(went))
        rows += [f"{' ' if tag == 'equal' else '-'}{line}" for line in went]
        rows += [f"+{line}" for line in (now[j1:j2] if tag != "equal" else ())]
    base = first_line(node)
    hidden = dict(_quiet(node, lambda line: row_of[line - base], rows))
    shown: Rows = []
    k = 0
    while k < len(rows):
        if k in hidden:
            indent = len(rows[k]) - len(rows[k][1:].lstrip())
            shown.append(f"{rows[k][:indent]}...,")
            k = hidden[k]
        else:
            shown.append(rows[k])
            k += 1
    return shown


def _quiet(node: ast.AST, row: Any, rows: Rows) -> Iterator[tuple[int, int]]:
    """Yield the runs of rows of entries that are not beside a change, those of at least two rows."""
    spans = _spans(node, row)
    if spans is None:
        for child in ast.iter_child_nodes(node):
            yield from _quiet(child, row, rows)
        return
    run: list[tuple[int, int]] = []
    for first, last, entry in [*spans, (len(rows), len(rows), None)]:
        if entry is not None and all(one[0] == " " for one in rows[max(0, first - 1) : last + 2]):
            run.append((first, last))
            continue
        if run and run[-1][1] - run[0][0] > 0:
            yield run[0][0], run[-1][1] + 1
        run = []
        for part in filter(None, entry if isinstance(entry, tuple) else [entry]):
            yield from _quiet(part, row, rows)


def _spans(node: ast.AST, row: Any) -> list[tuple[int, int, Any]] | None:
    """Return the rows of each entry of a call or a literal, if each begins on a line of its own."""
    found = entries(node)
    if not found or getattr(node, "end_lineno", 0) == getattr(node, "lineno", 0):
        return None
    spans, above = [], int(node.lineno)  # type: ignore[attr-defined]
    if isinstance(node, ast.Call):
        above = end_line(node.func)
    for entry in found:
        first, last = (entry[0] or entry[1], entry[1]) if isinstance(entry, tuple) else (entry, entry)
        if first.lineno <= above:
            return None
        above = int(last.end_lineno)
        spans.append((row(first.lineno), row(above), entry))
    return spans if end_line(node) > above else None
