"""The program on a pseudo-terminal, and what stands on its screen in the end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.forks import ended, start

_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|(.)", re.DOTALL)
_ROWS = 50


@dataclass(frozen=True)
class Shown:
    """One run of the program on a terminal."""

    code: int
    raw: str  # all that was written to it
    columns: int

    @property
    def screen(self) -> list[str]:
        """The lines that stand there in the end; one that is longer than the terminal is wide is two."""
        return screen(self.raw, self.columns)


def on_terminal(
    *arguments: str | Path,
    columns: int = 80,
    env: Mapping[str, str] | None = None,
    stdout: int | None = None,
    first: Callable[[], object] = bool,
) -> Shown:
    """Run the program on a terminal of so many columns, after a call of `first`. `stdout` may go elsewhere."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
    streams = (theirs, theirs if stdout is None else stdout, theirs)
    child = start(
        *arguments, streams=streams, env={"TERM": "xterm-256color", "COLUMNS": "", **(env or {})}, first=first
    )
    os.close(theirs)
    seen = drained(ours)
    return Shown(ended(child), seen.decode(), columns)


def drained(terminal: int) -> bytes:
    """Return what is written to a terminal until its last process closes it; close our end."""
    seen = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the terminal closes with its last process
            break
        if not data:
            break
        seen += data
    os.close(terminal)
    return seen


def written(*arguments: str | Path, env: Mapping[str, str] | None = None, stdout: int | None = None) -> str:
    """Run the program on a terminal, of 150 columns by default, and return all that it writes there, but progress."""
    raw = on_terminal(*arguments, env={"COLUMNS": "150", **(env or {})}, stdout=stdout).raw
    return re.sub(r"\r[^\r\n]*\x1b\[K", "", raw)


def screen(raw: str, columns: int) -> list[str]:
    """Return the lines on a terminal after this was written to it: text, and the few controls that rich writes."""
    rows: list[list[str]] = [[]]
    row = column = 0
    for parameter, final, char in _TOKEN.findall(raw):
        if final == "A":
            row = max(0, row - int(parameter or 1))
        elif final == "K":
            rows[row] = []
        elif char == "\r":
            column = 0
        elif char == "\n" or (char and column == columns):
            row, column = row + 1, 0 if char != "\n" else column
            rows += [[]] * (row == len(rows))
        if char and char not in "\r\n":
            line = rows[row] = [*rows[row], *" " * (column + 1 - len(rows[row]))]
            line[column] = char
            column += 1
        assert final in ("", "A", "K", "m", "h", "l"), f"a control that this terminal does not know: {final}"
    lines = ["".join(line).rstrip() for line in rows]
    while lines and not lines[-1]:
        lines.pop()
    return lines
