"""The commands that read releases: fetch, matrix, cache."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from itertools import product
from pathlib import Path
from typing import Any

import click
from packaging.utils import parse_wheel_filename

from vpatch.cli.options import overlay_option, reported, unwinding
from vpatch.cli.output import Report, bar, share, tell
from vpatch.core.catalogue import discover, select
from vpatch.errors import Failure, Problem, naming
from vpatch.matrix.baseline import Kind, changes
from vpatch.matrix.cache import WHEELS, Cache, Usage
from vpatch.matrix.cache import folder as cache_folder
from vpatch.matrix.rendering import lines, markdown, markdown_changes, page, page_template, table
from vpatch.matrix.run import run
from vpatch.matrix.trees import LocalTree, Revision
from vpatch.matrix.verdicts import Matrix, Row, Source, as_rows, read_rows

PATH = click.Path(path_type=Path, readable=False)


@click.command("fetch")
@click.argument("version")
@click.argument("folder", metavar="DIR", type=PATH)
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


@click.command("matrix")
@click.option("--vllm", "versions", multiple=True, metavar="V", help="This release (repeatable).")
@click.option(
    "--project", "projects", multiple=True, metavar="NAME", help="Releases of this project on the index (repeatable)."
)
@click.option("--wheel", "wheels", multiple=True, metavar="FILE", type=PATH, help="A wheel (repeatable).")
@click.option("--tree", "trees", multiple=True, metavar="DIR", type=PATH, help="A vLLM in a folder (repeatable).")
@click.option(
    "--git", "repositories", multiple=True, metavar="URL_OR_DIR", help="A repository; nothing in it is checked out."
)
@click.option("--rev", "revs", multiple=True, metavar="REV", help="A revision of that repository (repeatable).")
@overlay_option("all of them")
@click.option("--baseline", metavar="FILE", type=PATH, help="What --json printed earlier: tell what changed since.")
@click.option("--html", metavar="FILE", type=PATH, help="Write a page, too.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@click.option("--no-cache", is_flag=True, help="Neither use nor keep what was fetched.")
@reported
def matrix_command(
    versions: tuple[str, ...],
    projects: tuple[str, ...],
    wheels: tuple[Path, ...],
    trees: tuple[Path, ...],
    repositories: tuple[str, ...],
    revs: tuple[str, ...],
    ids: tuple[str, ...],
    baseline: Path | None,
    html: Path | None,
    *,
    as_markdown: bool,
    no_cache: bool,
) -> Report:
    """Say of many vLLMs what every overlay, opt-in ones included, would do to them. Changes none of them.

    By default these are all releases since 0.18.0. Each overlay is really applied in memory, compiled, applied again
    and reverted. Only the files that overlays look at are read, and kept in a cache.

    With --baseline, only what got worse since makes it exit with 1.
    """
    _check_usage(repositories, revs, as_markdown=as_markdown)
    unwinding()
    began = time.monotonic()
    if html:
        _check_writable(html)
    before = read_rows(baseline) if baseline else None
    installed = discover()
    overlays = select(installed, ids) if ids else installed
    revisions = [Revision(*pair) for pair in product(repositories, revs or ("HEAD",))]
    sources: list[Source] = [*_wheels(wheels), *map(LocalTree, trees), *revisions]
    notes: tuple[str, ...] = ()
    if versions or projects or not sources:
        releases, notes = _releases(projects, versions, cached=not no_cache)
        sources = [*releases, *sources]
    _check_names(sources)
    with share(f"{len(sources)} vLLMs") as progress:
        matrix = run(sources, overlays, [item.id for item in overlays if ids or not item.overlay.opt_in], progress)
    if html:
        with naming("cannot write", str(html)):
            html.write_text(page(matrix, version=version_of("vpatch"), made=datetime.now(UTC)), "utf-8")
    extra = _extra(matrix, notes, time.monotonic() - began)
    if before is not None:
        return _compared(matrix, extra, before, baseline, as_markdown=as_markdown)
    text, cells = (markdown(matrix), []) if as_markdown else (lines(matrix), table(matrix))
    return Report("matrix", problems=matrix.problems, extra=extra, lines=text, table=cells)


def _check_usage(repositories: Sequence[str], revs: Sequence[str], *, as_markdown: bool) -> None:
    if revs and not repositories:
        raise click.UsageError("--rev is a revision of --git")
    if len(repositories) > 1:
        raise click.UsageError("--git is one repository; --rev may be repeated")
    if as_markdown and click.get_current_context().params.get("as_object"):
        raise click.UsageError("--markdown and --json are two forms of one result: leave one out")


def _check_writable(path: Path) -> None:
    """Check that the page can be made and written, before the work is done."""
    page_template()
    with naming("cannot write", str(path)), path.open("a"):
        return


def _check_names(sources: Sequence[Source]) -> None:
    """Refuse rows of one name: neither a person nor a baseline could distinguish them."""
    names = [source.name for source in sources]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Failure(*(Problem("asked for twice", name, "two rows would have this name") for name in twice))


def _wheels(paths: Sequence[Path]) -> list[Source]:
    if not paths:
        return []
    from vpatch.matrix.releases import WheelFile

    return [*map(WheelFile, paths)]


def _releases(
    projects: Sequence[str], versions: Sequence[str], *, cached: bool
) -> tuple[list[Source], tuple[str, ...]]:
    """Return the releases, and notes on where their lists come from."""
    from vpatch.matrix.releases import releases_of

    cache = Cache.opened() if cached else None
    listings = [releases_of(project, versions, cache) for project in projects or ("vllm",)]
    return [r for listing in listings for r in listing.releases], tuple(n for one in listings for n in one.notes)


def _extra(matrix: Matrix, notes: Sequence[str], seconds: float) -> Mapping[str, Any]:
    """Print the notes and the work that was done on stderr; return the fields of the JSON object."""
    trees = [(row.name, row.tree) for row in matrix.rows if row.tree is not None]
    received, size = sum(tree.received for _, tree in trees), sum(tree.size for _, tree in trees)
    notes = (*notes, *(f"{name}: {note}" for name, tree in trees for note in tree.notes))
    done = f"{len(matrix.rows)} vLLM{'s' * (len(matrix.rows) != 1)} in {seconds:.1f} s"
    if size:
        done += f"; read {received / 1e6:.1f} of {size / 1e6:,.0f} MB of wheels ({received / size:.2%})"
    for note in (*notes, done):
        tell(note)
    fields = {"rows": as_rows(matrix), "notes": notes, "bytes_read": received, "wheel_bytes": size}
    return {**fields, "seconds": round(seconds, 1)}


def _compared(
    matrix: Matrix, extra: Mapping[str, Any], before: Sequence[Row], baseline: Path | None, *, as_markdown: bool
) -> Report:
    """Report the changes since the baseline."""
    found = changes(before, matrix)
    if not found:
        tell(f"nothing changed since {baseline}")
    return Report(
        "matrix",
        problems=[change.problem for change in found if change.kind is Kind.WORSE],
        extra={**extra, "changes": list(map(asdict, found))},
        lines=[*markdown_changes(found), *markdown(matrix)] if as_markdown else [str(change) for change in found],
    )


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove it.")
@reported
def cache_command(*, clear: bool) -> Report:
    """Show what is kept of the releases that were read, so that they need not be read again.

    It is checked whenever it is used. It lies in the user's folder for caches, XDG_CACHE_HOME or ~/.cache.
    """
    cache = Cache(cache_folder())
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
