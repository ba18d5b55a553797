"""The output of commands: one JSON object for scripts; for people, lines that fit their terminal."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TextIO

import click

from vpatch.cli.wording import COLORS, Line, Row, diff_line, table
from vpatch.errors import Code, Failure, Problem, UnknownName, cause, shell
from vpatch.installation import before_fetching
from vpatch.wrapping import printable, wrapped

QUIET = "vpatch.quiet"  # the key of click's context for `--quiet`


class Grid(list[Sequence[str]]):
    """A table for a terminal, whose columns fold; the first row has the headings."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What every command reports. A command's own type adds what it found, for scripts and for people.

    Attributes:
        problems: what needs attention; any makes the exit code 1.
        failed: whether the exit code is 1 without a problem.
        misused: whether the user named something that does not exist, which makes it 2.
        cautions: what to look out for; they change no outcome, and `--json` does not silence them.
        notes: remarks that change no outcome.
        offer: the line above the outcome: what the user may not know of.
        outcome: the last line: what came of it, and what to do next.
        exact: whether what people see is for another program, byte for byte; only a terminal gets it escaped.
    """

    problems: Sequence[Problem] = ()
    failed: bool = False
    misused: bool = False
    cautions: Sequence[str] = ()
    notes: Sequence[str] = ()
    offer: str = ""
    outcome: str = ""
    exact: ClassVar[bool] = False

    @property
    def exit_code(self) -> int:
        """0 for success, 1 if something needs attention, 2 if the user named something that does not exist."""
        return 2 if self.misused else int(self.failed or bool(self.problems))

    @property
    def unseen(self) -> Sequence[Problem | str]:
        """The problems and the notes that people have not seen before."""
        return (*self.problems, *self.notes)

    def fields(self) -> Mapping[str, Any]:
        """Return the fields of the JSON object that other commands do not have, or have empty."""
        return {}

    def shown(self, width: int | None) -> Iterable[Line] | Grid:
        """Return what people see on stdout; `width` is the terminal's, None for a pipe, whose lines are not broken."""
        return ()


@dataclass(frozen=True, kw_only=True)
class TextReport(Report):
    """A report of lines for people, and of fields for scripts that hold the same; `whole` lines are never broken."""

    object: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
    whole: bool = False

    def fields(self) -> Mapping[str, Any]:
        """Return the fields."""
        return self.object

    def shown(self, width: int | None) -> Iterable[Line]:
        """Return the lines."""
        return fitted(self.lines, None if self.whole else width)


@dataclass(frozen=True, kw_only=True)
class Failed(Report):
    """The report of a command that could not do what was asked for `tree`."""

    failed: bool = True
    tree: str | None = None

    @classmethod
    def of(cls, failure: Failure, *, tree: str | None = None, outcome: str = "") -> Failed:
        """Report a failure, with `outcome` unless the user named something that does not exist."""
        misused = isinstance(failure, UnknownName)
        if any(problem.code is Code.NO_VLLM for problem in failure.problems):
            outcome = _without_vllm()
        return cls(problems=failure.problems, tree=tree, misused=misused, outcome="" if misused else outcome)

    def fields(self) -> Mapping[str, Any]:
        """Return the folder that the user named."""
        return {"tree": self.tree}


def _without_vllm() -> str:
    """Return what one can do who has no vLLM yet."""
    from vpatch.plan.deployment import NEWEST

    fetch = f"{shell('vpatch', 'fetch', NEWEST, f'vllm-{NEWEST}')}{before_fetching()}"
    plan = shell("vpatch", "plan", "--help")
    return f"No vLLM yet? Planning needs none: {plan}. To try vpatch on the sources of a release: {fetch}."


def as_object(command: str, report: Report) -> dict[str, Any]:
    """Return the JSON object of the contract, schema 1."""
    common = {"schema": 1, "command": command, "tree": None, "vllm": None, "overlays": [], "changed": []}
    remarks = {"problems": [problem.as_json() for problem in report.problems], "notes": list(report.notes)}
    return {**common, **remarks, **report.fields()}


def show(report: Report, command: str = "") -> int:
    """Print results to stdout, then problems, notes and the outcome to stderr; return the exit code.

    With a `command`, the result is its JSON object.
    """
    lost = None
    try:
        if command:
            _print([json.dumps(as_object(command, report))])
        else:
            _show_results(report)
    except BrokenPipeError:
        raise  # click ends quietly: the reader is gone
    except OSError as error:
        if sys.stdout:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again at exit
        lost = Problem("cannot write", "standard output", cause(error))
    if lost:
        tell(str(lost), fg="red")
        report = replace(report, outcome="")
    remark(report, as_object=bool(command))
    return 1 if lost else report.exit_code


def remark(report: Report, *, as_object: bool) -> None:
    """Print the cautions, the problems, the notes and the outcome to stderr."""
    for caution in report.cautions:
        tell(f"caution: {caution}")
    for one in report.unseen:
        if isinstance(one, Problem):
            tell(str(one), fg="red")
        elif not as_object:
            tell(f"note: {one}")
    if not as_object:
        frame(report.offer)
        wrong = "red" if report.problems else "yellow"
        if report.outcome and report.exit_code and not report.problems:
            tell(report.outcome, fg=wrong)  # also with --quiet: nothing else says why
        else:
            frame(report.outcome, fg=wrong if report.exit_code else "green")


def _show_results(report: Report) -> None:
    shown = report.shown(_width(sys.stdout))
    if isinstance(shown, Grid):
        _print_grid(shown)
    elif report.exact and not on_terminal(sys.stdout):
        _print([line.text for line in shown])
    else:
        _print(_styled(shown, sys.stdout))


def _styled(lines: Iterable[Line], stream: TextIO | None) -> list[str]:
    """Return lines as a stream takes them: escaped, and in color on a terminal."""
    colored = _colored(stream)
    return [line.styled(printable) if colored else printable(line.text) for line in lines]


def fitted(lines: Iterable[str], width: int | None) -> Iterator[Line]:
    """Break lines between words to fit a terminal; what continues a line is indented by two more columns."""
    for line in lines:
        text = line.lstrip(" ")
        indent = " " * (len(line) - len(text))
        yield from map(Line, wrapped(text, width, indent, f"{indent}  "))


def tell(line: str, *, fg: str | None = None) -> None:
    """Print a line to stderr, escaped and broken to fit a terminal; on one, in the color `fg`."""
    pieces = wrapped(printable(line), _width(sys.stderr), hanging="  ")
    _echo(click.style(piece, fg=fg) if fg and _colored(sys.stderr) else piece for piece in pieces)


def tell_table(rows: Sequence[Row]) -> None:
    """Print a table to stderr."""
    _echo(_styled(table(rows, _width(sys.stderr)), sys.stderr))


def tell_diff(lines: Iterable[str]) -> None:
    """Print a diff to stderr."""
    _echo(_styled(map(diff_line, lines), sys.stderr))


def _echo(lines: Iterable[str]) -> None:
    with _cleared():
        for line in lines:
            click.echo(line.encode("utf-8", "backslashreplace"), err=True)  # as stdout, whatever the locale


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
def alone() -> Iterator[None]:
    """Take every progress off the terminal for a block that shows its own."""
    before = _displays[:]
    for display in before:
        display.stop()
    _displays.clear()
    try:
        yield
    finally:
        _displays[:] = before
        for display in before:
            display.start()


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
    if stream is None or not on_terminal(stream):
        return None
    try:
        return int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        return os.get_terminal_size(stream.fileno()).columns or 80


def _print(lines: Sequence[str]) -> None:
    """Print lines to stdout; even bytes that are not UTF-8 come out unchanged."""
    if lines and sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # click would print nothing, and report no error
    if lines:
        with _cleared():
            click.echo("\n".join(lines).encode("utf-8", "surrogateescape"))


def is_rich(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal that knows colors, and how to erase a line."""
    return on_terminal(stream) and os.environ.get("TERM") != "dumb"


def _colored(stream: TextIO | None) -> bool:
    return is_rich(stream) and not os.environ.get("NO_COLOR")


def _print_grid(rows: Grid) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    headings, *body = rows
    columns = (Column(heading, no_wrap=not index, overflow="fold") for index, heading in enumerate(headings))
    grid = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in body:
        grid.add_row(*(Text(printable(cell), style=COLORS.get(cell, "")) for cell in row))
    Console(color_system="auto" if _colored(sys.stdout) else None).print(grid)
