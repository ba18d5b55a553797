"""The output of commands: one JSON object for scripts; for people, lines that fit their terminal."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TextIO

import click

from vpatch.cli import verdicts
from vpatch.cli.verdicts import Line, Row
from vpatch.core.verdict import Verdict
from vpatch.errors import Problem, cause
from vpatch.wrapping import printable, wrapped

QUIET = "vpatch.quiet"  # the key of click's context for `--quiet`


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
    drawn: Callable[[int | None], Iterable[Line]] | None = None  # draws them itself, for a terminal of some columns
    table: Sequence[Sequence[str]] = ()  # what people see on a terminal; the first row has the headings
    failed: bool = False  # whether the exit code is 1 without a problem
    misused: bool = False  # whether the exit code is 2: the user named something that does not exist
    cautions: Sequence[str] = ()  # what to look out for; they change no outcome
    notes: Sequence[str] = ()  # remarks that change no outcome
    wrap: bool = True  # whether `lines` may be broken between words to fit a terminal
    settled: bool = False  # whether there was nothing to do: people have seen the notes before
    exact: bool = False  # whether `lines` are for another program, byte for byte; only a terminal gets them escaped
    verbose: bool = False  # whether the verdicts are shown with their parts
    details: Sequence[str] = ()  # lines below the verdicts
    offer: str = ""  # the line above the outcome: what the user may not know of
    outcome: str = ""  # the last line: what came of it, and what to do next
    rows: Sequence[Row] = ()  # shown above the verdicts
    told: bool = False  # whether the problems were printed while the command ran

    @property
    def exit_code(self) -> int:
        """0 for success, 1 if something needs attention, 2 if the user named something that does not exist."""
        return 2 if self.misused else int(self.failed or bool(self.problems))

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


def show(report: Report, *, as_object: bool) -> int:
    """Print results to stdout, then problems, notes and the outcome to stderr; return the exit code."""
    lost = None
    try:
        _show_results(report, as_object=as_object)
    except BrokenPipeError:
        raise  # click ends quietly: the reader is gone
    except OSError as error:
        if sys.stdout:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again at exit
        lost = Problem("cannot write", "standard output", cause(error))
    if lost:
        tell(str(lost), fg="red")
        report = replace(report, outcome="")
    remark(report, as_object=as_object)
    return 1 if lost else report.exit_code


def remark(report: Report, *, as_object: bool) -> None:
    """Print the cautions, the problems, the notes and the outcome to stderr."""
    for caution in report.cautions:
        tell(f"caution: {caution}")
    for problem in () if report.told else report.problems:
        tell(str(problem), fg="red")
    if not as_object:
        for note in () if report.settled and not report.verbose else report.all_notes:
            tell(f"note: {note}")
        frame(report.offer)
        frame(report.outcome, fg=_color(report))


def _show_results(report: Report, *, as_object: bool) -> None:
    if as_object:
        _print(report.as_json(), exact=True)
        return
    width = _width(sys.stdout)
    if len(report.table) > 1 and on_terminal(sys.stdout):
        _print_table(report.table)
    elif report.lines is None:
        rows = [*report.rows, *verdicts.rows(report.verdicts, parts=report.verbose)]
        shown = report.drawn(width) if report.drawn else verdicts.table(rows, width)
        _print(*_styled(shown, sys.stdout), exact=True)
    elif report.exact:
        _print(*report.lines, exact=not on_terminal(sys.stdout))
    else:
        _print(*(piece for line in report.lines for piece in _fitted(line, width if report.wrap else None)))
    _print(*(piece for line in report.details for piece in _fitted(line, width)))


def _styled(lines: Iterable[verdicts.Line], stream: TextIO | None) -> Iterator[str]:
    colored = _colored(stream)
    return (line.styled(printable) if colored else printable(line.text) for line in lines)


def _fitted(line: str, width: int | None) -> list[str]:
    """Break a line for a terminal; what continues it is indented by two more columns."""
    text = line.lstrip(" ")
    indent = " " * (len(line) - len(text))
    return wrapped(text, width, indent, f"{indent}  ")


def tell(line: str, *, fg: str | None = None) -> None:
    """Print a line to stderr, escaped and broken to fit a terminal; on one, in the color `fg`."""
    pieces = wrapped(printable(line), _width(sys.stderr), hanging="  ")
    _echo(click.style(piece, fg=fg) if fg and _colored(sys.stderr) else piece for piece in pieces)


def tell_table(rows: Sequence[Row]) -> None:
    """Print a table to stderr."""
    _echo(_styled(verdicts.table(rows, _width(sys.stderr)), sys.stderr))


def _echo(lines: Iterable[str]) -> None:
    with _cleared():
        for line in lines:
            click.echo(line, err=True)


def for_people() -> bool:
    """Whether the command prints more than its results: the user asked neither for JSON nor for silence."""
    context = click.get_current_context(silent=True)
    return context is not None and not (context.params.get("as_object") or context.meta.get(QUIET))


def frame(line: str, *, fg: str | None = None) -> None:
    """Print a first or last line of a command to stderr, unless the user asked for JSON or for silence."""
    if line and for_people():
        tell(line, fg=fg)


class Display(Protocol):
    """Progress that stands below the output until it is stopped."""

    def start(self) -> None:
        """Show it."""

    def stop(self) -> None:
        """Remove it."""


_displays: list[Display] = []


@contextmanager
def displayed(display: Display) -> Iterator[None]:
    """Take `display`, which is shown, off the terminal while a line is printed, which would continue its own."""
    _displays.append(display)
    try:
        yield
    finally:
        _displays.remove(display)


@contextmanager
def _cleared() -> Iterator[None]:
    for display in _displays:
        display.stop()
    try:
        yield
    finally:
        for display in _displays:
            display.start()


def on_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; Python has None for one that was closed before vpatch started."""
    return stream is not None and stream.isatty()


def _width(stream: TextIO | None) -> int | None:
    """Return the columns of a terminal; None if the stream is none, and lines are not broken."""
    if stream is None or not stream.isatty():
        return None
    try:
        return int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        return os.get_terminal_size(stream.fileno()).columns or 80


def _print(*lines: str, exact: bool = False) -> None:
    """Print lines to stdout, escaped unless `exact`; then even bytes that are not UTF-8 come out unchanged."""
    if lines and sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # click would print nothing, and report no error
    if lines:
        shown = lines if exact else map(printable, lines)
        with _cleared():
            click.echo("\n".join(shown).encode("utf-8", "surrogateescape"))


def _colored(stream: TextIO | None) -> bool:
    return on_terminal(stream) and not os.environ.get("NO_COLOR")


def _color(report: Report) -> str | None:
    if report.exit_code:
        return "red" if report.problems else "yellow"
    return "green"


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    headings, *body = rows
    columns = (Column(heading, no_wrap=not index, overflow="fold") for index, heading in enumerate(headings))
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in body:
        table.add_row(*(Text(printable(cell), style=verdicts.COLORS.get(cell, "")) for cell in row))
    Console(color_system="auto" if _colored(sys.stdout) else None).print(table)
