"""The command that shows and clears the user's cache: releases that were read, verdicts, and farms of `vpatch run`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
from packaging.utils import parse_wheel_filename

from vpatch.cli.options import examples, reported
from vpatch.cli.output import Report, TextReport
from vpatch.cli.wording import counted, listed
from vpatch.errors import Problem
from vpatch.matrix.cache import WHEELS, Cache, Usage
from vpatch.run import upkeep
from vpatch.run.upkeep import FARMS, Cleared, Farm
from vpatch.settings import cache_folder


@click.command("cache", epilog=examples("cache", "cache --clear"))
@click.option("--clear", is_flag=True, help="Remove the cache, except farms that processes run from.")
@reported
def cache_command(*, clear: bool) -> Report:
    """Show or clear the cache: releases, verdicts and farms.

    The releases and verdicts are those of `vpatch matrix`, the farms those of `vpatch run`. vpatch checks each file of
    the cache when it uses it. The cache is in XDG_CACHE_HOME, by default ~/.cache.
    """
    cache = Cache(cache_folder())
    store = (cache.folder / FARMS).resolve()
    done = upkeep.clear(store) if clear else Cleared((), tuple(upkeep.farms(store)), "")
    gone, left = done.removed, done.left
    removed = cache.clear() if clear else Usage()
    there = cache.usage()
    # A note is written only for a wheel whose name could be parsed.
    releases = sorted({parse_wheel_filename(note["file"])[:2] for note in cache.notes(WHEELS)})
    names = [f"{project} {version}" for project, version in releases]
    if clear:
        lines = [f"{cache.folder}: removed {_formatted(removed)}", *_summary(store, gone, "removed ")]
    else:
        lines = [f"{cache.folder}: {_formatted(there)}", *names, *_summary(store, left), *map(_line, left)]
    fields = {
        "folder": str(cache.folder),
        "files": there.files,
        "bytes": there.bytes,
        "releases": names,
        "farms": [
            {
                "folder": str(farm.folder),
                "digest": farm.digest,
                "bytes": farm.bytes,
                "used": _date(farm).isoformat(),
                "processes": list(farm.processes),
            }
            for farm in left
        ],
        "removed": {"files": removed.files, "bytes": removed.bytes, "farms": len(gone)},
    }
    return TextReport(object=fields, lines=lines, problems=list(_kept(done, store)) if clear else [])


def _kept(done: Cleared, store: Path) -> Iterator[Problem]:
    """Yield why farms were not removed."""
    for farm in done.left:
        if farm.processes:
            why = f"{_processes(farm)} would lose vLLM's files"
            yield Problem("farm in use", str(farm.folder), why, hint="stop it first")
    if done.obstacle:
        yield Problem("farms not removed", str(store), done.obstacle)


def _processes(farm: Farm) -> str:
    return f"process{'es' * (len(farm.processes) > 1)} {listed([str(process) for process in farm.processes])}"


def _summary(store: Path, farms: Sequence[Farm], done: str = "") -> list[str]:
    size = sum(farm.bytes for farm in farms) / 1e6
    return [f"{store}: {done}{counted(len(farms), 'farm')}, {size:.1f} MB"] if farms else []


def _line(farm: Farm) -> str:
    used = f"used by {_processes(farm)}" if farm.processes else f"last used {_date(farm):%Y-%m-%d}"
    return f"{farm.digest[:12] or 'unreadable'} {farm.bytes / 1e6:.1f} MB, {used}"


def _date(farm: Farm) -> datetime:
    return datetime.fromtimestamp(farm.used, UTC)


def _formatted(usage: Usage) -> str:
    return f"{counted(usage.files, 'file')}, {usage.bytes / 1e6:.1f} MB"
