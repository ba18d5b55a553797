"""The matrix as `vpatch matrix --json` prints it, and read again from there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vpatch.core.verdict import PartVerdict, State, Verdict
from vpatch.errors import Failure, Problem, naming
from vpatch.matrix.verdicts import Cell, Matrix, Row, Tree, parsed_version

T = TypeVar("T")


def as_rows(matrix: Matrix) -> list[dict[str, Any]]:
    """Give the field "rows". What could not be read has no "origin"."""
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
        Failure: it cannot be read, or is something else.
    """
    with naming("cannot read", str(path)):
        data = path.read_bytes()
    try:
        body = json.loads(data)
        if _field(body, "schema", int) != 1 or _field(body, "command", str) != "matrix":
            raise _OtherError("it is no result of this version's `vpatch matrix --json`")
        rows = tuple(_each(body, "rows", _row))
        names = [row.name for row in rows]
        if twice := [name for name in names if names.count(name) > 1]:
            raise _OtherError(f"rows: two are called {twice[0]}")
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are such
        cause = str(error) if isinstance(error, _OtherError) else f"it is no JSON: {error}"
        raise Failure(Problem("not a baseline", str(path), cause)) from error
    return rows


class _OtherError(ValueError):
    """What was read is not what it should be."""


def _is(found: object, kind: type[T]) -> T:
    if not isinstance(found, kind):
        raise _OtherError(f"{json.dumps(found)[:40]} is no {kind.__name__}")
    return found


def _field(body: object, name: str, kind: type[T]) -> T:
    fields = _is(body, dict)
    if name not in fields:
        raise _OtherError(f"{name}: it is missing")
    try:
        return _is(fields[name], kind)
    except _OtherError as error:
        raise _OtherError(f"{name}: {error}") from error


def _each(body: object, name: str, parse: Callable[[object], T]) -> Sequence[T]:
    found = []
    for number, one in enumerate(_field(body, name, list)):
        try:
            found.append(parse(one))
        except _OtherError as error:
            raise _OtherError(f"{name}[{number}]: {error}") from error
    return found


def _optional(body: object, name: str) -> str | None:
    found = _field(body, name, object)
    return None if found is None else _field(body, name, str)


def _row(body: object) -> Row:
    name, said, origin = _field(body, "name", str), _field(body, "vllm", str), _optional(body, "origin")
    version = None if said == name and parsed_version(said) is None else said
    return Row(
        name,
        None if origin is None else Tree({}, version, origin),
        tuple(_each(body, "overlays", _cell)),
        tuple(_each(body, "problems", _problem)),
    )


def _cell(body: object) -> Cell:
    verdict = Verdict(_field(body, "id", str), tuple(_each(body, "parts", _part)))
    if not verdict.parts or verdict.state != _field(body, "state", str):
        raise _OtherError(f"state: it is not that of the parts of {verdict.id}")
    return Cell(verdict, tuple(_each(body, "problems", _problem)))


def _part(body: object) -> PartVerdict:
    state = _field(body, "state", str)
    if state not in set(State):
        raise _OtherError(f"state: there is none called {state}")
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
