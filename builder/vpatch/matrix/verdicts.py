"""The matrix: what each overlay would do to each vLLM; and its rows as JSON, written and read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import PartVerdict, State, Verdict
from vpatch.errors import Failure, Problem, naming
from vpatch.matrix.sources import Tree, parsed_version

T = TypeVar("T")

BROKEN = frozenset({State.DRIFTED, State.CONFLICT})  # the states that need a person's attention


@dataclass(frozen=True)
class Cell:
    """What one overlay would do to one vLLM.

    `verdict` is on the unmodified vLLM. `problems` need a person's attention: those of the verdict, and those found
    after the overlay was applied in memory.
    """

    verdict: Verdict
    problems: tuple[Problem, ...] = ()

    @property
    def beyond(self) -> tuple[Problem, ...]:
        """The problems found after the overlay was applied."""
        return tuple(problem for problem in self.problems if problem not in self.verdict.problems)

    @property
    def urgent(self) -> bool:
        """Whether the cell needs a person's attention."""
        return bool(self.problems) or self.verdict.state in BROKEN


@dataclass(frozen=True)
class Row:
    """One vLLM, with a cell for each overlay.

    A vLLM that could not be read has no cells, and no tree; `problems` then say why. Otherwise they are the problems
    that belong to no single cell.
    """

    name: str
    tree: Tree | None
    cells: tuple[Cell, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """Rows, oldest release first, and the overlays in the order of each row's cells."""

    overlays: tuple[Catalogued, ...]
    rows: tuple[Row, ...]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems, each with the row and the overlay that it concerns."""
        return tuple(
            problem if problem.where.startswith(where) else replace(problem, where=f"{where}: {problem.where}")
            for row in self.rows
            for where, problems in (
                (row.name, row.problems),
                *((f"{row.name}: {cell.verdict.id}", cell.problems) for cell in row.cells),
            )
            for problem in problems
        )


def as_rows(matrix: Matrix) -> list[dict[str, Any]]:
    """Return the field "rows" of `vpatch matrix --json`. A vLLM that could not be read has no "origin"."""
    return [
        {
            "vllm": (row.tree.version if row.tree else None) or row.name,
            "name": row.name,
            "origin": row.tree.origin if row.tree else None,
            "problems": [problem.as_json() for problem in row.problems],
            "overlays": [
                {**cell.verdict.as_json(), "problems": [problem.as_json() for problem in cell.problems]}
                for cell in row.cells
            ],
        }
        for row in matrix.rows
    ]


def read_rows(path: Path) -> tuple[Row, ...]:
    """Read the rows of a file that `vpatch matrix --json` wrote. Their trees have no files.

    Raises:
        Failure: the file cannot be read, or is not such a file.
    """
    with naming("cannot read", str(path)):
        data = path.read_bytes()
    try:
        body = json.loads(data)
        if _field(body, "schema", int) != 1 or _field(body, "command", str) != "matrix":
            raise _FormatError("it is no result of this version's `vpatch matrix --json`")
        rows = tuple(_each(body, "rows", _row))
        names = [row.name for row in rows]
        if twice := [name for name in names if names.count(name) > 1]:
            raise _FormatError(f"rows: two are called {twice[0]}")
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        cause = str(error) if isinstance(error, _FormatError) else f"it is no JSON: {error}"
        raise Failure(Problem("not a baseline", str(path), cause)) from error
    return rows


class _FormatError(ValueError):
    """The JSON is not that of a matrix; the text has the path to the field."""


def _is(found: object, kind: type[T]) -> T:
    if not isinstance(found, kind):
        raise _FormatError(f"{json.dumps(found)[:40]} is no {kind.__name__}")
    return found


def _field(body: object, name: str, kind: type[T]) -> T:
    fields = _is(body, dict)
    if name not in fields:
        raise _FormatError(f"{name}: it is missing")
    try:
        return _is(fields[name], kind)
    except _FormatError as error:
        raise _FormatError(f"{name}: {error}") from error


def _each(body: object, name: str, parse: Callable[[object], T]) -> Sequence[T]:
    found = []
    for number, one in enumerate(_field(body, name, list)):
        try:
            found.append(parse(one))
        except _FormatError as error:
            raise _FormatError(f"{name}[{number}]: {error}") from error
    return found


def _optional(body: object, name: str) -> str | None:
    return None if _field(body, name, object) is None else _field(body, name, str)


def _row(body: object) -> Row:
    name, shown, origin = _field(body, "name", str), _field(body, "vllm", str), _optional(body, "origin")
    version = None if shown == name and parsed_version(shown) is None else shown
    return Row(
        name,
        None if origin is None else Tree({}, version, origin),
        tuple(_each(body, "overlays", _cell)),
        tuple(_each(body, "problems", _problem)),
    )


def _cell(body: object) -> Cell:
    verdict = Verdict(_field(body, "id", str), tuple(_each(body, "parts", _part)))
    if not verdict.parts or verdict.state != _field(body, "state", str):
        raise _FormatError(f"state: it is not that of the parts of {verdict.id}")
    return Cell(verdict, tuple(_each(body, "problems", _problem)))


def _part(body: object) -> PartVerdict:
    state = _field(body, "state", str)
    if state not in set(State):
        raise _FormatError(f"state: there is none called {state}")
    return PartVerdict(
        _field(body, "name", str),
        State(state),
        _field(body, "because", str),
        tuple(_each(body, "files", lambda file: _is(file, str))),
        _optional(body, "shape"),
    )


def _problem(body: object) -> Problem:
    return Problem(
        _field(body, "what", str), _field(body, "file", str), _field(body, "cause", str), _optional(body, "scope") or ""
    )
