"""The command that gets a pristine release: fetch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vpatch.cli.options import reported
from vpatch.report import Report

if TYPE_CHECKING:
    from vpatch.release.fetch import Progress


@click.command("fetch")
@click.argument("version")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, readable=False))
@reported
def fetch_command(version: str, folder: Path) -> Report:
    """Put the pristine Python sources of vLLM VERSION into DIR, laid out as in site-packages.

    Only these files are read from the package index, not the whole wheel; each is checked against the wheel's RECORD.
    The index is the one that pip or uv is set to use.
    """
    from vpatch.release.fetch import fetch

    with _bar(f"vllm {version}") as progress:
        got = fetch(version, folder, progress=progress)
    read, whole = got.bytes_read / 1e6, got.wheel_bytes / 1e6
    return Report(
        "fetch",
        str(got.tree),
        got.version,
        extra={"wheel": got.wheel, "files": got.files, "bytes_read": got.bytes_read, "wheel_bytes": got.wheel_bytes},
        lines=[f"vllm {got.version}: {got.files} files in {got.tree} ({read:.1f} of {whole:.0f} MB read)"],
    )


@contextmanager
def _bar(label: str) -> Iterator[Progress | None]:
    """Show a progress bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
