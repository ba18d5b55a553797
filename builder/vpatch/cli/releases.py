"""The commands for releases on the package index: fetch, cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vpatch.cli.options import reported
from vpatch.cli.output import Report, bar

if TYPE_CHECKING:
    from vpatch.matrix.cache import Usage


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

    with bar(f"vllm {version}") as progress:
        got = fetch(version, folder, progress=progress)
    read, whole = got.bytes_read / 1e6, got.wheel_bytes / 1e6
    return Report(
        "fetch",
        str(got.tree),
        got.version,
        extra={"wheel": got.wheel, "files": got.files, "bytes_read": got.bytes_read, "wheel_bytes": got.wheel_bytes},
        lines=[f"vllm {got.version}: {got.files} files in {got.tree} ({read:.1f} of {whole:.0f} MB read)"],
    )


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove it.")
@reported
def cache_command(*, clear: bool) -> Report:
    """Show what is kept of the releases that were read, so that they need not be read again.

    It is checked whenever it is used. It lies in the user's folder for caches, XDG_CACHE_HOME or ~/.cache.
    """
    from packaging.utils import parse_wheel_filename

    from vpatch.matrix.cache import WHEELS, Cache, Usage, folder

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
