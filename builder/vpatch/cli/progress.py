"""Progress on stderr, if that is a terminal. It stands below the output and is gone at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from vpatch.cli.output import QUIET, displayed, on_terminal
from vpatch.wrapping import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from vpatch.image import Phase

_BAR = 20  # columns


@contextmanager
def bar(label: str, *, sizes: bool = True) -> Iterator[Callable[[float, float], object] | None]:
    """Show a progress by what is done and what is expected, in bytes if these are `sizes`."""
    if not on_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    of_sizes = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with (
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
    if not on_terminal(sys.stderr) or click.get_current_context().meta.get(QUIET):
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
    with live, displayed(live):
        yield now.show


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
