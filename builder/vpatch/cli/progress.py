"""Progress bars on stderr, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vpatch.cli.output import on_terminal

if TYPE_CHECKING:
    from vpatch.net.ranges import Progress


@contextmanager
def bar(label: str) -> Iterator[Progress | None]:
    """Show a download's progress."""
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
    """Show progress from 0 to 1."""
    if not on_terminal(sys.stderr):
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=1)
        yield lambda done: bar.update(task, completed=done)
