"""Progress on stderr, if that is a terminal. It stands below the output and is gone at the end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from vpatch.cli.output import QUIET, alone, displayed, for_people, is_rich
from vpatch.wrapping import printable, shortened

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from vpatch.image import Phase

_BAR = 20  # columns
_SILENT = 1.0  # seconds
_DOTS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@contextmanager
def bar(label: str, *, sizes: bool = True) -> Iterator[Callable[[float, float], object] | None]:
    """Show a progress by what is done and what is expected, in bytes if these are `sizes`."""
    if not is_rich(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    of_sizes = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with (
        alone(),
        Bar(*(of_sizes if sizes else Bar.get_default_columns()), console=Console(stderr=True), transient=True) as bar,
        displayed(bar),
    ):
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def share(label: str) -> Iterator[Callable[[float], object]]:
    """Show progress from 0 to 1."""
    with bar(label, sizes=False) as shown:
        yield lambda done: shown(done, 1) if shown else None


@contextmanager
def phases() -> Iterator[Phase | None]:
    """Show what is being done and since when, with a bar where the number of bytes is known."""
    if not is_rich(sys.stderr) or click.get_current_context().meta.get(QUIET):
        yield None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

    now = _Now(Spinner("dots"))
    now.live = live = Live(
        get_renderable=now.draw,
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=10,
        redirect_stdout=False,  # `displayed` does it: click writes past what rich puts in place of the streams
        redirect_stderr=False,
    )
    with alone(), live, displayed(live):
        yield now.show


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show what is being done, and since when, once the command has printed nothing for a second.

    A timer of the process draws it, and no thread: vpatch forks, and a fork has the locks of all threads.
    """
    if not is_rich(sys.stderr) or not for_people():
        yield
        return
    line = _Waiting(what)
    before = signal.signal(signal.SIGALRM, line.draw)
    line.start()
    try:
        with displayed(line):
            yield
    finally:
        line.stop()
        signal.signal(signal.SIGALRM, before)


class _Waiting:
    """The line of `waiting`, written without a buffer, since it may come in the middle of any other output."""

    def __init__(self, what: str) -> None:
        self._what, self._began, self._on, self._drawn = what, time.monotonic(), False, 0
        self._frames = _DOTS if (sys.stderr.encoding or "").lower().startswith("utf") else "-\\|/"

    def start(self) -> None:
        """Draw it after a second, and then ten times in one."""
        self._on = True
        signal.setitimer(signal.ITIMER_REAL, _SILENT, 0.1)

    def stop(self) -> None:
        """Erase it."""
        self._on = False  # first: a signal may be on its way
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._drawn:
            self._write("\r\x1b[K")
        self._drawn = 0

    def draw(self, *_: object) -> None:
        """Draw it, as the handler of the timer's signal."""
        if self._on:
            self._drawn += 1
            seconds = f"{time.monotonic() - self._began:.0f} s"
            room = os.get_terminal_size(sys.stderr.fileno()).columns - len(seconds) - 4
            what = shortened(self._what, room) if room > 3 else ""
            self._write(f"\r{self._frames[self._drawn % len(self._frames)]} {what} {seconds}\x1b[K")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # such as a terminal that is gone
            os.write(sys.stderr.fileno(), text.encode())


class _Now:
    """The phase of a command, on one line."""

    live: Live

    def __init__(self, spinner: RenderableType) -> None:
        self._spinner, self._what, self._since = spinner, "starting", time.monotonic()
        self._done = self._total = 0

    def show(self, what: str, done: int = 0, total: int = 0) -> None:
        """Show a phase, as `vpatch.image.Phase` is called."""
        new = what != self._what
        self._done, self._total = done, total
        if new:
            self._what, self._since = what, time.monotonic()
            self.live.refresh()

    def draw(self) -> RenderableType:
        """Return the line."""
        from rich.filesize import decimal
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        cells: list[RenderableType] = [self._spinner, Text(printable(self._what), no_wrap=True, overflow="ellipsis")]
        if self._total:
            cells.append(ProgressBar(total=self._total, completed=min(self._done, self._total), width=_BAR))
            cells.append(Text(f"{decimal(self._done)} of {decimal(self._total)}", no_wrap=True))
        cells.append(Text(f"{time.monotonic() - self._since:.0f} s", style="bright_black", no_wrap=True))
        line = Table.grid(padding=(0, 1))
        line.add_row(*cells)
        return line
