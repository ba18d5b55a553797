"""What a command has to say: for scripts as one JSON object, for people as lines or, on a terminal, a table."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import click

from vpatch.core.verdict import State, Verdict
from vpatch.errors import Problem

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
    verdicts, and `table`, where it has rows, what they see on a terminal: the first has the headings. `notes` are
    remarks that change no outcome. `exact` lines are for another program, byte for byte; only a terminal gets them
    escaped.
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
    exact: bool = False

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
        "overlays": [verdict.as_json() for verdict in report.verdicts],
        "changed": list(report.changed),
        "problems": [problem.as_json() for problem in report.problems],
        "notes": notes_of(report),
    }
    return json.dumps({**body, **report.extra})


def notes_of(report: Report) -> list[str]:
    """List the remarks of a report and of its verdicts, each once."""
    said = [note for verdict in report.verdicts for part in verdict.parts for note in part.notes]
    return list(dict.fromkeys([*report.notes, *said]))


def show(report: Report, *, as_object: bool) -> None:
    """Write results, with their notes, to stdout, and problems to stderr."""
    for problem in report.problems:
        tell(str(problem), fg="red" if _colour(sys.stderr) else None)
    if as_object:
        _say(as_json(report), exact=True)
        return
    table = report.table or (_rows(report.verdicts) if report.lines is None else ())
    if len(table) > 1 and on_terminal(sys.stdout):
        _table(table)
    elif report.lines is not None:
        _say(*report.lines, exact=report.exact and not on_terminal(sys.stdout))
    else:
        _say(*(f"{verdict.id}: {verdict.state}: {verdict.because}" for verdict in report.verdicts))
    _say(*(f"changed: {path}" for path in report.changed))
    _say(*(f"note: {note}" for note in notes_of(report)))


def printable(text: str) -> str:
    r"""`text` on one line, with characters that a terminal obeys or hides as escapes: `\x1b`, `\n`, `\u202e`.

    Labels, file names and code of an image or a wheel may hold any. This is the only place where they are escaped.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def tell(line: str, *, fg: str | None = None) -> None:
    """Print a line on stderr, escaped; `fg` is its color, for a terminal."""
    told = printable(line)
    click.echo(click.style(told, fg=fg) if fg else told, err=True)


def _say(*lines: str, exact: bool = False) -> None:
    """Print lines of a result, escaped unless they are `exact`; in those even what is no UTF-8 comes out unchanged."""
    if lines and sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # else click says nothing, and all seems well
    if lines:
        shown = lines if exact else map(printable, lines)
        click.echo("\n".join(shown).encode("utf-8", "surrogateescape"))


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
        table.add_row(*(Text(printable(cell), style=_COLOURS[cell] if isinstance(cell, State) else "") for cell in row))
    Console(color_system="auto" if _colour(sys.stdout) else None).print(table)
