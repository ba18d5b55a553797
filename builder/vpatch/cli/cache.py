"""The command `vpatch cache`: show and clear what was read of releases."""

from __future__ import annotations

import click
from packaging.utils import parse_wheel_filename

from vpatch.cli.options import reported
from vpatch.cli.output import Report
from vpatch.matrix.cache import WHEELS, Cache, Usage, folder


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove it.")
@reported
def cache_command(*, clear: bool) -> Report:
    """Show what is kept of the releases that were read, so that they need not be read again.

    It is checked whenever it is used. It lies in the user's folder for caches, XDG_CACHE_HOME or ~/.cache.
    """
    cache = Cache(folder())
    removed = cache.clear() if clear else Usage()
    there = cache.usage()
    # A note is written only for a wheel whose name could be parsed.
    releases = sorted({parse_wheel_filename(note["file"])[:2] for note in cache.notes(WHEELS)})
    names = [f"{project} {version}" for project, version in releases]
    lines = [f"{cache.folder}: {_formatted(there)}", *names]
    if clear:
        lines = [f"{cache.folder}: removed {_formatted(removed)}"]
    extra = {
        "folder": str(cache.folder),
        "files": there.files,
        "bytes": there.bytes,
        "releases": names,
        "removed": {"files": removed.files, "bytes": removed.bytes},
    }
    return Report("cache", extra=extra, lines=lines)


def _formatted(usage: Usage) -> str:
    return f"{usage.files} {'file' if usage.files == 1 else 'files'}, {usage.bytes / 1e6:.1f} MB"
