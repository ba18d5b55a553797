"""The matrix in words: lines for scripts, a table for a terminal, and one in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import State
from vpatch.matrix.verdicts import Cell, Matrix, Row


def lines(matrix: Matrix) -> list[str]:
    """Give a line for each cell, with the reason, and with what went wrong where the overlay was applied."""
    return [f"{row.name}: {_whole(cell)}" for row in matrix.rows for cell in row.cells]


def _whole(cell: Cell) -> str:
    reasons = "; ".join([cell.verdict.because, *map(str, cell.beyond)])
    return f"{cell.verdict.id}: {cell.verdict.state}: {reasons}"


def table(matrix: Matrix) -> list[tuple[str, ...]]:
    """Give a table for people: what each overlay is to the vLLMs, in short; neighbours are one where it is the same."""
    told: list[tuple[str, ...]] = [("overlay", "vLLM", "state", "because")]
    for column, item in enumerate(matrix.overlays):
        title = item.id
        for name, row in _spans(matrix.rows, partial(_brief, item, column)):
            told.append((title, name, *_brief(item, column, row)))
            title = ""
    return told + [("", row.name, "unknown", str(row.problems[0])) for row in matrix.rows if row.tree is None]


def _brief(item: Catalogued, column: int, row: Row) -> tuple[State, str]:
    """Give a cell in a few words; the whole reason is in `lines`."""
    cell = row.cells[column]
    state = cell.verdict.state
    if cell.problems:
        return state, "; ".join(map(str, cell.problems))
    if state is State.MERGED:
        return state, ", ".join(item.overlay.upstream)
    shapes = dict.fromkeys(part.shape for part in cell.verdict.parts if part.shape)
    return state, f"as in {', '.join(shapes)}" if shapes else ""


def markdown(matrix: Matrix) -> list[str]:
    """Give a table in Markdown; releases of equal states are in one row."""
    told = ["| vLLM | " + " | ".join(f"`{item.id}`" for item in matrix.overlays) + " |"]
    told.append("|---" * (len(matrix.overlays) + 1) + "|")
    told += [f"| {_escaped(name)} | {' | '.join(_states(row))} |" for name, row in _spans(matrix.rows, _states)]
    unread = (row for row in matrix.rows if row.tree is None)
    padding = " |" * (len(matrix.overlays) - 1)
    return told + [
        f"| {_escaped(r.name)} | **cannot be read**: {_escaped(str(r.problems[0]))} |{padding}" for r in unread
    ]


def _spans(rows: Sequence[Row], said: Callable[[Row], object]) -> Iterator[tuple[str, Row]]:
    """Give the rows that could be read; neighbouring releases of one project of which the same is said are one row."""

    def key(row: Row) -> object:
        if row.tree is None:
            return None
        release = row.tree.version and row.name.endswith(row.tree.version)
        return (row.name.removesuffix(row.tree.version or "") if release else row.name, said(row))

    for common, group in groupby(rows, key):
        if common is not None:
            first, *more = group
            yield (f"{first.name}{' to ' if more[1:] else ', '}{more[-1].name}" if more else first.name), first


def _states(row: Row) -> tuple[str, ...]:
    """Give what a row of the Markdown table says; what a person must look at stands out."""
    return tuple(f"**{c.verdict.state}**" if c.problems else str(c.verdict.state) for c in row.cells)


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")
