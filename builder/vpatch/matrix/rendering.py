"""The matrix for people: text lines, a terminal table, Markdown, and one HTML page without scripts or other files."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import State
from vpatch.installation import needing
from vpatch.matrix.baseline import Change, Urgency
from vpatch.matrix.verdicts import Cell, Matrix, Row
from vpatch.wrapping import printable

if TYPE_CHECKING:
    from jinja2 import Template

_HEADINGS = {
    Urgency.WORSE: "Worse",
    Urgency.BETTER: "Better",
    Urgency.OTHER: "Other changes",
    Urgency.STILL: "As bad as in the baseline",
}

_PIECES = re.compile(r"`([^`]+)`|(?<![\w/.-])([\w.-]+/[\w.-]+#\d+)\b")


def lines(matrix: Matrix) -> list[str]:
    """Render a line for each cell, with its reason and the problems found after the overlay was applied."""
    cells = ((row.name, cell.verdict, cell.beyond) for row in matrix.rows for cell in row.cells)
    return [f"{name}: {v.id}: {v.state}: {'; '.join([v.because, *map(str, beyond)])}" for name, v, beyond in cells]


def table(matrix: Matrix) -> list[tuple[str, ...]]:
    """Render a table with a short reason for each cell; neighboring vLLMs with equal cells share a row."""
    cells: list[tuple[str, ...]] = [("overlay", "vLLM", "state", "because")]
    for column, item in enumerate(matrix.overlays):
        title = item.id
        for name, row in _spans(matrix.rows, partial(_brief, item, column)):
            cells.append((title, name, *_brief(item, column, row)))
            title = ""
    return cells + [("", row.name, "unknown", str(row.problems[0])) for row in matrix.rows if row.tree is None]


def _brief(item: Catalogued, column: int, row: Row) -> tuple[State, str]:
    cell = row.cells[column]
    state = cell.verdict.state
    if cell.problems:
        return state, "; ".join(map(str, cell.problems))
    if state is State.MERGED:
        return state, ", ".join(f"#{link.rpartition('#')[2]}" for link in item.overlay.upstream)
    shapes = dict.fromkeys(part.shape for part in cell.verdict.parts if part.shape)
    return state, f"as in {', '.join(shapes)}" if shapes else cell.verdict.parts[0].brief


def markdown(matrix: Matrix) -> list[str]:
    """Render a table in Markdown; neighboring vLLMs with equal states share a row."""
    rows = ["| vLLM | " + " | ".join(f"`{item.id}`" for item in matrix.overlays) + " |"]
    rows.append("|---" * (len(matrix.overlays) + 1) + "|")
    rows += [f"| {_escaped(name)} | {' | '.join(_states(row))} |" for name, row in _spans(matrix.rows, _states)]
    padding = " |" * (len(matrix.overlays) - 1)
    for row in (row for row in matrix.rows if row.tree is None):
        rows.append(f"| {_escaped(row.name)} | **cannot be read**: {_escaped(str(row.problems[0]))} |{padding}")
    return rows


def _spans(rows: Sequence[Row], shown: Callable[[Row], object]) -> Iterator[tuple[str, Row]]:
    """Yield the rows that could be read; neighboring releases of one project that show the same are one row."""

    def key(row: Row) -> object:
        if row.tree is None:
            return None
        release = row.tree.version and row.name.endswith(row.tree.version)
        return (row.name.removesuffix(row.tree.version or "") if release else row.name, shown(row))

    for common, group in groupby(rows, key):
        if common is not None:
            first, *more = group
            yield (f"{first.name}{' to ' if more[1:] else ', '}{more[-1].name}" if more else first.name), first


def _states(row: Row) -> tuple[str, ...]:
    return tuple(f"**{c.verdict.state}**" if c.problems else str(c.verdict.state) for c in row.cells)


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")


def markdown_changes(changes: Sequence[Change]) -> list[str]:
    """Render changes in Markdown: a list for each kind, worse first."""
    text = []
    for kind, heading in _HEADINGS.items():
        items = []
        for change in (change for change in changes if change.kind is kind):
            where = ", ".join(map(_code, filter(None, (change.vllm, change.overlay))))
            items.append("- " + ": ".join(filter(None, (where, change.compared(_code), _code(change.because)))))
        text += [f"### {heading}", "", *items, ""] if items else []
    return text


def _code(text: str) -> str:
    """Format text as a code span, so that it neither mentions users nor links issues."""
    line = " ".join(text.split())
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"


class _Reason(NamedTuple):
    """Equal cells of one overlay on the page."""

    id: str
    column: int
    item: Catalogued
    cell: Cell
    rows: Sequence[int]
    parts: Counter[State]


def page(matrix: Matrix, *, made: datetime, version: str) -> str:
    """Render the page, with the newest row first. `made` is when the verdicts were computed; `version` is vpatch's."""
    rows = matrix.rows[::-1]
    numbers = defaultdict[tuple[int, Cell], list[int]](list)
    for number, row in enumerate(rows):
        for key in enumerate(row.cells):
            numbers[key].append(number)
    found = {}
    for number, (column, cell) in enumerate(sorted(numbers, key=lambda key: key[0])):
        item, parts = matrix.overlays[column], Counter(part.state for part in cell.verdict.parts)
        found[column, cell] = _Reason(f"reason-{number}", column, item, cell, numbers[column, cell], parts)
    return page_template().render(
        overlays=matrix.overlays,
        rows=rows,
        reasons=tuple(found.values()),
        lines=tuple(tuple(found[key] for key in enumerate(row.cells)) for row in rows),
        states=Counter(cell.verdict.state for row in rows for cell in row.cells),
        made=made.astimezone(UTC),
        version=version,
    )


def page_template() -> Template:
    """Return the template of the page; raise a failure if its extra is not installed."""
    with needing("matrix", "cannot make the page"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
    options: Any = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}

    def shown(value: object) -> object:
        """Escape what a browser, or a terminal that shows the page's source, would obey."""
        if not isinstance(value, str) or hasattr(value, "__html__"):  # what a macro made of text that is escaped
            return value
        return "\n".join(map(printable, value.split("\n")))

    environment = Environment(loader=PackageLoader("vpatch.matrix", ""), autoescape=True, finalize=shown, **options)
    environment.filters |= {"pieces": pieces, "words": lambda state: state.replace("_", " "), "on": on}
    return environment.get_template("page.html")


def pieces(text: str) -> Iterator[tuple[str, str]]:
    """Split a text into pieces: "text", "code" (in backticks) and "link" (`owner/repo#1`)."""
    end = 0
    for match in _PIECES.finditer(text):
        yield "text", text[end : match.start()]
        yield ("code", match[1]) if match[1] else ("link", match[2])
        end = match.end()
    yield "text", text[end:]


def on(name: str) -> str:
    """Return a row's name with "vLLM" in it."""
    return name if "vllm" in name.lower() else f"vLLM {name}"
