"""What a command has to say: for scripts as one JSON object, for people as lines or, on a terminal, a table."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import click

from vpatch.errors import Problem
from vpatch.model import State, Verdict

_COLOURS = {
    State.CONFLICT: "red",
    State.DRIFTED: "red",
    State.PENDING: "yellow",
    State.APPLIED: "green",
    State.MERGED: "green",
    State.NOT_APPLICABLE: "bright_black",
}


@dataclass(frozen=True)
class Report:
    """The result of a command.

    `extra` are the fields that only this command has. `lines`, where it is not None, is what people see instead of the
    verdicts, and `table`, where it has rows, what they see on a terminal: the first has the headings. `notes` follow.
    """

    command: str
    tree: str | None = None
    vllm: str | None = None
    verdicts: Sequence[Verdict] = ()
    changed: Sequence[str] = ()
    problems: Sequence[Problem] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] | None = None
    table: Sequence[Sequence[str]] = ()
    failed: bool = False
    notes: Sequence[str] = ()

    @property
    def exit_code(self) -> int:
        """0 where the tree is as asked, 1 where a person must look."""
        return int(self.failed or bool(self.problems))


def as_json(report: Report) -> str:
    """Give the JSON object of the contract, schema 1."""
    import json

    body = {
        "schema": 1,
        "command": report.command,
        "tree": report.tree,
        "vllm": report.vllm,
        "overlays": [verdict_object(verdict) for verdict in report.verdicts],
        "changed": list(report.changed),
        "problems": [problem_object(problem) for problem in report.problems],
    }
    return json.dumps({**body, **report.extra})


def problem_object(problem: Problem) -> dict[str, Any]:
    """Give a problem as the contract's object."""
    return {"what": problem.what, "file": problem.where, "scope": problem.scope or None, "cause": problem.cause}


def verdict_object(verdict: Verdict) -> dict[str, Any]:
    """Give a verdict as the contract's object."""
    parts = [
        {"name": p.name, "state": p.state, "because": p.because, "shape": p.shape, "files": list(p.files)}
        for p in verdict.parts
    ]
    return {"id": verdict.id, "state": verdict.state, "because": verdict.because, "parts": parts}


def show(report: Report, *, as_object: bool) -> None:
    """Write results to stdout and problems to stderr."""
    for problem in report.problems:
        click.echo(click.style(str(problem), fg="red") if _colour(sys.stderr) else str(problem), err=True)
    if as_object:
        _say(as_json(report))
        return
    table = report.table or (_rows(report.verdicts) if report.lines is None else ())
    if len(table) > 1 and on_terminal(sys.stdout):
        _table(table)
    elif report.lines is not None:
        _say(*report.lines)
    else:
        _say(*(f"{verdict.id}: {verdict.state}: {verdict.because}" for verdict in report.verdicts))
    _say(*(f"changed: {path}" for path in report.changed))
    _say(*(f"note: {note}" for note in report.notes))


def _say(*lines: str) -> None:
    """Print lines of a result; what is no UTF-8 in them, such as code in a diff, comes out as it went in."""
    if lines and sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # else click says nothing, and all seems well
    if lines:
        click.echo("\n".join(lines).encode("utf-8", "surrogateescape"))


def on_terminal(stream: TextIO | None) -> bool:
    """Tell whether people see it: what was closed before vpatch was started, Python gives as None."""
    return stream is not None and stream.isatty()


def _colour(stream: TextIO | None) -> bool:
    return on_terminal(stream) and not os.environ.get("NO_COLOR")


def _rows(verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("overlay", "part", "state", "because")]
    for verdict in verdicts:
        for index, part in enumerate(verdict.parts):
            rows.append(("" if index else verdict.id, part.name, part.state, part.because))
    return rows


def _table(rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    headings, *body = rows
    table = Table(*headings, box=None, pad_edge=False, header_style="bold")
    for row in body:
        table.add_row(*(Text(cell, style=_COLOURS[cell] if isinstance(cell, State) else "") for cell in row))
    Console(color_system="auto" if _colour(sys.stdout) else None).print(table)
