"""The output of commands: one JSON object for scripts; lines or, on a terminal, tables and progress bars for people."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import click

from vpatch.core.verdict import State, Verdict
from vpatch.errors import Problem

if TYPE_CHECKING:
    from vpatch.net.ranges import Progress

_COLORS = {
    State.CONFLICT: "red",
    State.DRIFTED: "red",
    State.PENDING: "yellow",
    State.APPLIED: "green",
    State.MERGED: "green",
    State.NOT_APPLICABLE: "bright_black",
}


@dataclass(frozen=True)
class Report:
    """The result of a command."""

    command: str  # its name
    tree: str | None = None  # the folder that it worked on
    vllm: str | None = None  # the version there
    verdicts: Sequence[Verdict] = ()  # shown unless `lines` is set
    changed: Sequence[str] = ()  # paths written or removed
    problems: Sequence[Problem] = ()  # what needs attention; any makes the exit code 1
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields of the JSON object that only this command has
    lines: Sequence[str] | None = None  # what people see instead of the verdicts
    table: Sequence[Sequence[str]] = ()  # what people see on a terminal; the first row has the headings
    failed: bool = False  # whether the exit code is 1 without a problem
    notes: Sequence[str] = ()  # remarks that change no outcome
    exact: bool = False  # whether `lines` are for another program, byte for byte; only a terminal gets them escaped

    @property
    def exit_code(self) -> int:
        """0 for success, 1 if something needs attention."""
        return int(self.failed or bool(self.problems))

    @property
    def all_notes(self) -> list[str]:
        """The notes of the report and of its verdicts, each once."""
        told = [note for verdict in self.verdicts for part in verdict.parts for note in part.notes]
        return list(dict.fromkeys([*self.notes, *told]))

    def as_json(self) -> str:
        """Return the JSON object of the contract, schema 1."""
        body = {
            "schema": 1,
            "command": self.command,
            "tree": self.tree,
            "vllm": self.vllm,
            "overlays": [verdict.as_json() for verdict in self.verdicts],
            "changed": list(self.changed),
            "problems": [problem.as_json() for problem in self.problems],
            "notes": self.all_notes,
        }
        return json.dumps({**body, **self.extra})


def show(report: Report, *, as_object: bool) -> None:
    """Print results and notes to stdout, problems to stderr."""
    for problem in report.problems:
        tell(str(problem), fg="red" if _colored(sys.stderr) else None)
    if as_object:
        _print(report.as_json(), exact=True)
        return
    table = report.table or (_rows(report.verdicts) if report.lines is None else ())
    if len(table) > 1 and on_terminal(sys.stdout):
        _print_table(table)
    elif report.lines is not None:
        _print(*report.lines, exact=report.exact and not on_terminal(sys.stdout))
    else:
        _print(*(f"{verdict.id}: {verdict.state}: {verdict.because}" for verdict in report.verdicts))
    _print(*(f"changed: {path}" for path in report.changed))
    _print(*(f"note: {note}" for note in report.all_notes))


def printable(text: str) -> str:
    r"""Return `text` on one line, with characters that control or deceive a terminal escaped: `\x1b`, `\n`, `\u202e`.

    Labels, file names and code of an image or a wheel may hold any. This is the only place that escapes them.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def tell(line: str, *, fg: str | None = None) -> None:
    """Print a line to stderr, escaped, in the color `fg`."""
    told = printable(line)
    click.echo(click.style(told, fg=fg) if fg else told, err=True)


def on_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; Python has None for one that was closed before vpatch started."""
    return stream is not None and stream.isatty()


@contextmanager
def bar(label: str) -> Iterator[Progress | None]:
    """Show a download's progress on stderr, if that is a terminal."""
    if not on_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def share(label: str) -> Iterator[Callable[[float], None]]:
    """Show progress from 0 to 1 on stderr, if that is a terminal."""
    if not on_terminal(sys.stderr):
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=1)
        yield lambda done: bar.update(task, completed=done)


def _print(*lines: str, exact: bool = False) -> None:
    """Print lines to stdout, escaped unless `exact`; then even bytes that are not UTF-8 come out unchanged."""
    if lines and sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # click would print nothing, and report no error
    if lines:
        shown = lines if exact else map(printable, lines)
        click.echo("\n".join(shown).encode("utf-8", "surrogateescape"))


def _colored(stream: TextIO | None) -> bool:
    return on_terminal(stream) and not os.environ.get("NO_COLOR")


def _rows(verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("overlay", "part", "state", "because")]
    for verdict in verdicts:
        for index, part in enumerate(verdict.parts):
            rows.append(("" if index else verdict.id, part.name, part.state, part.because))
    return rows


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    headings, *body = rows
    table = Table(*headings, box=None, pad_edge=False, header_style="bold")
    for row in body:
        table.add_row(*(Text(printable(cell), style=_COLORS[cell] if isinstance(cell, State) else "") for cell in row))
    Console(color_system="auto" if _colored(sys.stdout) else None).print(table)
