"""The matrix as one HTML page that needs nothing else: no script, no other file, no network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import State
from vpatch.errors import Failure, Problem
from vpatch.matrix.verdicts import Cell, Matrix

SAYS = {
    State.PENDING: "the code is one that the overlay knows, and the change is to be made",
    State.APPLIED: "every change is there, with its marks (`# vpatch: <overlay>`)",
    State.MERGED: "upstream has it; the reason names the pull request",
    State.NOT_APPLICABLE: "the feature or the defect is not in this vLLM",
    State.DRIFTED: "none of these: says what was expected, what was found, and what comes closest. Nothing is written",
    State.CONFLICT: "two selected overlays want the same code. Nothing is written",
}
"""What each state says, in README's words and order."""

_PIECES = re.compile(r"`([^`]+)`|(?<![\w/.-])([\w.-]+/[\w.-]+#\d+)\b")


@dataclass(frozen=True)
class Reason:
    """What is behind the cells of one overlay that say the same: their column, and the numbers of their rows."""

    id: str
    column: int
    item: Catalogued
    cell: Cell
    rows: tuple[int, ...]

    @property
    def parts(self) -> Counter[State]:
        """How many parts are in which state."""
        return Counter(part.state for part in self.cell.verdict.parts)


def page(matrix: Matrix, *, made: datetime, version: str) -> str:
    """Give the page; the newest row comes first on it.

    Args:
        matrix: what it shows.
        made: when the verdicts were computed; it is shown in UTC.
        version: vpatch's own.

    Raises:
        Failure: the extra `vpatch[matrix]` is not installed.
    """
    needed()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    rows = matrix.rows[::-1]
    where: dict[tuple[int, Cell], list[int]] = {}
    for number, row in enumerate(rows):
        for column, cell in enumerate(row.cells):
            where.setdefault((column, cell), []).append(number)
    found = {
        key: Reason(f"reason-{number}", key[0], matrix.overlays[key[0]], key[1], tuple(where[key]))
        for number, key in enumerate(sorted(where, key=lambda key: key[0]))
    }
    environment = Environment(
        loader=PackageLoader("vpatch.matrix", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"pieces": pieces, "words": words, "on": on}
    html = environment.get_template("page.html").render(
        overlays=matrix.overlays,
        rows=rows,
        reasons=tuple(found.values()),
        lines=tuple(tuple(found[key] for key in enumerate(row.cells)) for row in rows),
        states=Counter(cell.verdict.state for row in rows for cell in row.cells),
        says=SAYS,
        made=made.astimezone(UTC),
        version=version,
    )
    # A byte of a folder's name that is no UTF-8 is no character either, and could not be written.
    return html.encode("utf-8", "backslashreplace").decode()


def needed() -> None:
    """Find out whether a page can be made.

    Raises:
        Failure: the extra `vpatch[matrix]` is not installed.
    """
    try:
        import jinja2  # noqa: F401
    except ModuleNotFoundError as error:
        cause = "not installed: pip install 'vpatch[matrix]'"
        raise Failure(Problem("cannot make the page", str(error.name), cause)) from error


def pieces(text: str) -> Iterator[tuple[str, str]]:
    """Give the pieces of a text, each with what it is: "text", "code" (in backticks) or "link" (`owner/repo#1`)."""
    end = 0
    for match in _PIECES.finditer(text):
        yield "text", text[end : match.start()]
        yield ("code", match[1]) if match[1] else ("link", match[2])
        end = match.end()
    yield "text", text[end:]


def words(state: State) -> str:
    """Give a state as people write it."""
    return state.replace("_", " ")


def on(name: str) -> str:
    """Give a row's name so that it says what it is."""
    return name if "vllm" in name.lower() else f"vLLM {name}"
