"""The command that looks at many vLLMs at once: matrix."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from pathlib import Path

import click

from vpatch.cli.options import overlay_option, reported, unwinding
from vpatch.cli.output import Report, tell
from vpatch.cli.progress import share
from vpatch.core.catalogue import discover, select
from vpatch.errors import Failure, Problem, naming
from vpatch.matrix.as_json import as_rows, read_rows
from vpatch.matrix.baseline import changes
from vpatch.matrix.difference import Kind, as_objects
from vpatch.matrix.difference import told as in_markdown
from vpatch.matrix.page import needed, page
from vpatch.matrix.rendering import lines, markdown, table
from vpatch.matrix.run import run
from vpatch.matrix.verdicts import Source

PATH = click.Path(path_type=Path, readable=False)


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
    if revs and not repositories:
        raise click.UsageError("--rev is a revision of --git")
    if len(repositories) > 1:
        raise click.UsageError("--git is one repository; --rev may be repeated")
    if as_markdown and click.get_current_context().params.get("as_object"):
        raise click.UsageError("--markdown and --json are two forms of one result: leave one out")
    unwinding()
    began = time.monotonic()
    if html:
        _writable(html)
    before = read_rows(baseline) if baseline else None
    installed = discover()
    overlays = select(installed, ids) if ids else installed
    sources: list[Source] = [*_files(wheels, trees), *_revisions(repositories, revs)]
    notes: tuple[str, ...] = ()
    if versions or projects or not sources:
        releases, notes = _releases(projects, versions, cached=not no_cache)
        sources = [*releases, *sources]
    _told_apart(sources)
    with share(f"{len(sources)} vLLMs") as progress:
        matrix = run(sources, overlays, [item.id for item in overlays if ids or not item.overlay.opt_in], progress)
    if html:
        _write(html, page(matrix, version=version_of("vpatch"), made=datetime.now(UTC)))
    read = [(row.name, row.tree) for row in matrix.rows if row.tree is not None]
    received, size = sum(tree.received for _, tree in read), sum(tree.size for _, tree in read)
    seconds = time.monotonic() - began
    notes += tuple(f"{name}: {note}" for name, tree in read for note in tree.notes)
    for note in (*notes, _counted(len(matrix.rows), seconds, received, size)):
        tell(note)
    extra = {
        "rows": as_rows(matrix),
        "notes": notes,
        "bytes_read": received,
        "wheel_bytes": size,
        "seconds": round(seconds, 1),
    }
    if before is None:
        problems, text = matrix.problems, markdown(matrix) if as_markdown else lines(matrix)
        return Report("matrix", problems=problems, extra=extra, lines=text, table=() if as_markdown else table(matrix))
    found = changes(before, matrix)
    if not found:
        tell(f"nothing changed since {baseline}")
    return Report(
        "matrix",
        problems=[change.problem for change in found if change.kind is Kind.WORSE],
        extra={**extra, "changes": as_objects(found)},
        lines=[*in_markdown(found), *markdown(matrix)] if as_markdown else [str(change) for change in found],
    )


def _files(wheels: Sequence[Path], trees: Sequence[Path]) -> list[Source]:
    if not wheels and not trees:
        return []
    from vpatch.matrix.local_tree import Folder
    from vpatch.matrix.wheel import WheelFile

    return [*map(WheelFile, wheels), *map(Folder, trees)]


def _revisions(repositories: Sequence[str], revs: Sequence[str]) -> list[Source]:
    if not repositories:
        return []
    from vpatch.matrix.revision import Revision

    return [Revision(repository, rev) for repository in repositories for rev in revs or ("HEAD",)]


def _told_apart(sources: Sequence[Source]) -> None:
    """Refuse rows of one name: nobody could say which is which, nor a baseline.

    Raises:
        Failure: there are such.
    """
    names = [source.name for source in sources]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Failure(*(Problem("asked for twice", name, "two rows would have this name") for name in twice))


def _releases(
    projects: Sequence[str], versions: Sequence[str], *, cached: bool
) -> tuple[list[Source], tuple[str, ...]]:
    """Give the releases that are asked for, and what is to be said of where they come from."""
    from vpatch.matrix.cache import Cache
    from vpatch.matrix.releases import releases_of

    cache = Cache.opened() if cached else None
    listings = [releases_of(project, versions, cache) for project in projects or ("vllm",)]
    return [r for listing in listings for r in listing.releases], tuple(n for one in listings for n in one.notes)


def _counted(rows: int, seconds: float, received: int, size: int) -> str:
    """Say what it took."""
    told = f"{rows} vLLM{'s' * (rows != 1)} in {seconds:.1f} s"
    return (
        f"{told}; read {received / 1e6:.1f} of {size / 1e6:,.0f} MB of wheels ({received / size:.2%})" if size else told
    )


def _writable(path: Path) -> None:
    """Find out before the work is done.

    Raises:
        Failure: the page cannot be written there, or the extra that makes it is not installed.
    """
    needed()
    with naming("cannot write", str(path)), path.open("a"):
        return


def _write(path: Path, text: str) -> None:
    with naming("cannot write", str(path)):
        path.write_text(text, "utf-8")
