"""The commands that read releases: fetch, matrix."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from itertools import product
from pathlib import Path
from typing import Any

import click

from vpatch.cli import outfile
from vpatch.cli.options import PathType, examples, overlay_option, reported, unwinding
from vpatch.cli.output import Report, tell
from vpatch.cli.progress import bar, share
from vpatch.cli.wording import command, counted
from vpatch.core.catalogue import discover, select
from vpatch.errors import Failure, Problem
from vpatch.matrix.baseline import Kind, changes
from vpatch.matrix.cache import Cache
from vpatch.matrix.rendering import lines, markdown, markdown_changes, page, page_template, table
from vpatch.matrix.run import run
from vpatch.matrix.trees import LocalTree, Revision
from vpatch.matrix.verdicts import Matrix, Row, Source, as_rows, read_rows

PATH = PathType()


@click.command("fetch", epilog=examples("fetch 0.20.2 vllm-0.20.2"))
@click.argument("version")
@click.argument("folder", metavar="DIR", type=PATH)
@reported
def fetch_command(version: str, folder: Path) -> Report:
    """Download the Python sources of a vLLM release into DIR.

    DIR is then laid out as site-packages. vpatch reads only these files from the package index, not the whole wheel,
    and checks each against the wheel's RECORD. It uses the index that pip or uv is configured to use.
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
        lines=[f"vLLM {got.version}: {got.files:,} files in {got.tree} ({read:.1f} of {whole:.0f} MB read)"],
        notes=_shortened([version]),
        outcome=f"Fetched. Next: {command('status', folder)}.",
    )


@click.command(
    "matrix",
    epilog=examples(
        "matrix", "matrix --vllm 0.20.2 --vllm 0.24.0", "matrix --git https://github.com/vllm-project/vllm --rev main"
    ),
)
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
@click.option("--baseline", metavar="FILE", type=PATH, help="Output of an earlier --json: print what changed since.")
@click.option("--html", metavar="FILE", type=PATH, help="Also write an HTML page.")
@outfile.FORCE
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@click.option("--no-cache", is_flag=True, help="Do not use the cache.")
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
    force: bool,
    as_markdown: bool,
    no_cache: bool,
) -> Report:
    """Show the state of each overlay in many vLLM releases.

    By default these are all releases since 0.18.0, and all overlays, opt-in ones included. vpatch applies each overlay
    in memory, compiles the result, applies it again and reverts it. It downloads only the files that overlays read,
    and caches them. It changes no vLLM.

    With --baseline, it exits with 1 only if something got worse.
    """
    _check_usage(repositories, revs, as_markdown=as_markdown)
    unwinding()
    began = time.monotonic()
    if html:
        page_template()  # may not be installed
        outfile.check(html, force=force)
    before = read_rows(baseline) if baseline else None
    installed = discover()
    overlays = select(installed, ids) if ids else installed
    revisions = [Revision(*pair) for pair in product(repositories, revs or ("HEAD",))]
    sources: list[Source] = [*_wheels(wheels), *map(LocalTree, trees), *revisions]
    notes: tuple[str, ...] = ()
    if versions or projects or not sources:
        releases, notes = _releases(projects, versions, cached=not no_cache)
        notes = (*notes, *_shortened(versions))
        sources = [*releases, *sources]
    _check_names(sources)
    with share(counted(len(sources), "vLLM")) as progress:
        matrix = run(sources, overlays, [item.id for item in overlays if ids or not item.overlay.opt_in], progress)
    if html:
        outfile.write(html, page(matrix, version=version_of("vpatch"), made=datetime.now(UTC)), force=force)
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


def _check_names(sources: Sequence[Source]) -> None:
    """Refuse rows of one name, which neither a reader nor a baseline could distinguish."""
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
    done = f"{counted(len(matrix.rows), 'vLLM')} in {seconds:.1f} s"
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


def _shortened(versions: Sequence[str]) -> list[str]:
    """Return a note for each version that looks as if it meant the newest of several releases."""
    short = [version for version in versions if re.fullmatch(r"v?\d+\.\d+", version)]
    return [f"{version} is the release {version}.0, not the newest of {version}" for version in short]
