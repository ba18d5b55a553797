"""The output of commands: one JSON object for scripts; for people, lines that fit their terminal."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import click

from vpatch.cli import verdicts
from vpatch.cli.verdicts import Line
from vpatch.cli.wording import wrapped
from vpatch.core.verdict import Verdict
from vpatch.errors import Problem, cause

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
    rows: Callable[[int | None], Iterable[Line]] | None = None  # the same with colors, for a terminal of some columns
    table: Sequence[Sequence[str]] = ()  # what people see on a terminal; the first row has the headings
    failed: bool = False  # whether the exit code is 1 without a problem
    misused: bool = False  # whether the exit code is 2: the user named something that does not exist
    notes: Sequence[str] = ()  # remarks that change no outcome
    wrap: bool = True  # whether `lines` may be broken between words to fit a terminal
    exact: bool = False  # whether `lines` are for another program, byte for byte; only a terminal gets them escaped
    verbose: bool = False  # whether the verdicts are shown with their parts
    details: Sequence[str] = ()  # lines below the verdicts
    outcome: str = ""  # the last line: what came of it, and what to do next

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
    for problem in (*report.problems, *filter(None, [lost])):
        tell(str(problem), fg="red")
    if not as_object:
        for note in report.all_notes:
            tell(f"note: {note}")
        frame(report.outcome, fg=_color(report))
    return 1 if lost else report.exit_code


def _show_results(report: Report, *, as_object: bool) -> None:
    if as_object:
        _print(report.as_json(), exact=True)
        return
    width = _width(sys.stdout)
    if len(report.table) > 1 and on_terminal(sys.stdout):
        _print_table(report.table)
    elif report.lines is None:
        table = verdicts.lines(report.verdicts, width, parts=report.verbose)
        shown = report.rows(width) if report.rows else table
        colored = _colored(sys.stdout)
        _print(*(line.styled(printable) if colored else printable(line.text) for line in shown), exact=True)
    elif report.exact:
        _print(*report.lines, exact=not on_terminal(sys.stdout))
    else:
        _print(*(piece for line in report.lines for piece in _fitted(line, width if report.wrap else None)))
    _print(*report.details)


def _fitted(line: str, width: int | None) -> list[str]:
    """Break a line for a terminal; what continues it is indented by two more columns."""
    text = line.lstrip(" ")
    indent = " " * (len(line) - len(text))
    return wrapped(text, width, indent, f"{indent}  ")


def printable(text: str) -> str:
    r"""Return `text` on one line, with characters that control or deceive a terminal escaped: `\x1b`, `\n`, `\u202e`.

    Labels, file names and code of an image or a wheel may hold any. This is the only place that escapes them.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def tell(line: str, *, fg: str | None = None) -> None:
    """Print a line to stderr, escaped and broken to fit a terminal; on one, in the color `fg`."""
    for piece in wrapped(printable(line), _width(sys.stderr), hanging="  "):
        click.echo(click.style(piece, fg=fg) if fg and _colored(sys.stderr) else piece, err=True)


def frame(line: str, *, fg: str | None = None) -> None:
    """Print a first or last line of a command to stderr, unless the user asked for JSON or for silence."""
    context = click.get_current_context(silent=True)
    if line and context and not (context.params.get("as_object") or context.meta.get(QUIET)):
        tell(line, fg=fg)


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
        click.echo("\n".join(shown).encode("utf-8", "surrogateescape"))


def _colored(stream: TextIO | None) -> bool:
    return on_terminal(stream) and not os.environ.get("NO_COLOR")


def _color(report: Report) -> str | None:
    if report.exit_code:
        return "red" if report.problems else "yellow"
    return "green"


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    headings, *body = rows
    table = Table(*headings, box=None, pad_edge=False, header_style="bold")
    for row in body:
        table.add_row(*(Text(printable(cell), style=verdicts.COLORS.get(cell, "")) for cell in row))
    Console(color_system="auto" if _colored(sys.stdout) else None).print(table)
