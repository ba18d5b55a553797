"""The commands that read releases: fetch, matrix."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from itertools import product
from pathlib import Path
from typing import Any

import click

from vpatch.cli.options import (
    PathType,
    check_outfile,
    examples,
    force_option,
    introduce_project,
    overlay_option,
    project,
    refuse_dash,
    reported,
    selected,
    unwinding,
    with_project,
    without_option,
    write_outfile,
)
from vpatch.cli.output import Grid, Report, TextReport, fitted, tell
from vpatch.cli.progress import bar, share
from vpatch.cli.upgrade import upgrade_report
from vpatch.cli.wording import Line, command, counted
from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine
from vpatch.core.listing import is_folder
from vpatch.errors import Failure, Problem, raise_unknown
from vpatch.foreign import is_nothing
from vpatch.matrix.baseline import Change, Urgency, changes, too_old
from vpatch.matrix.cache import Cache
from vpatch.matrix.memo import RowMemo
from vpatch.matrix.rendering import lines, markdown, markdown_changes, page, page_template, table
from vpatch.matrix.run import run
from vpatch.matrix.trees import LocalTree, Revision, is_url
from vpatch.matrix.verdicts import Matrix, RowSource, as_rows, read_rows
from vpatch.stamps import opened
from vpatch.wrapping import from_here

PATH = PathType()


@click.command("fetch", epilog=examples("fetch 0.20.2 vllm-0.20.2"))
@click.argument("version")
@click.argument("folder", metavar="DIR", type=PATH)
@reported
def fetch_command(version: str, folder: Path) -> Report:
    """Download the Python sources of a vLLM release into DIR.

    DIR is then laid out as site-packages. vpatch reads only these files from the package index, and those of folders
    that overlays look into, not the whole wheel, and checks each against the wheel's RECORD. It uses the index that pip
    or uv is configured to use.
    """
    from vpatch.release.fetch import fetch

    refuse_dash(folder)
    with bar(f"vllm {version}") as progress:
        got = fetch(version, folder, folders=_listed(), progress=progress)
    counts = {name: getattr(got, name) for name in ("wheel", "files", "bytes_read", "wheel_bytes")}
    read = f"{got.bytes_read / 1e6:.1f} of {got.wheel_bytes / 1e6:.0f} MB read"
    return TextReport(
        object={"tree": str(got.tree), "vllm": got.version, **counts},
        lines=[f"vLLM {got.version}: {got.files:,} files in {from_here(got.tree)} ({read})"],
        notes=shortened([version]),
        outcome=f"Fetched. Next: {command('status', folder)}.",
    )


def _listed() -> list[str]:
    """Return the folders whose names overlays read; none if the overlays cannot be loaded, as `status` then reports."""
    with suppress(Failure):
        return [*filter(is_folder, Engine(discover()).files)]
    return []


@click.command(
    "matrix",
    epilog=examples(
        "matrix",
        "matrix --vllm 0.20.2 --vllm 0.24.0",
        "matrix --patches patches --from 0.20.2 --to 0.24.0",
        "matrix --git https://github.com/vllm-project/vllm --rev main",
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
@without_option
@reported
@with_project
@click.option("--from", "start", metavar="A", help="With --to: what an upgrade from release A to B brings.")
@click.option("--to", "end", metavar="B", help="See --from.")
@click.option("--baseline", metavar="FILE", type=PATH, help="Output of an earlier --json: print what changed since.")
@click.option("--html", metavar="FILE", type=PATH, help="Also write an HTML page.")
@force_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@click.option("--no-cache", is_flag=True, help="Do not use the cache.")
def matrix_command(
    versions: tuple[str, ...],
    projects: tuple[str, ...],
    wheels: tuple[Path, ...],
    trees: tuple[Path, ...],
    repositories: tuple[str, ...],
    revs: tuple[str, ...],
    ids: tuple[str, ...],
    fewer: tuple[str, ...],
    start: str | None,
    end: str | None,
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

    With --baseline, it exits with 1 only if something got worse. With --from and --to, it says of each overlay whether
    it stays, is merged, or drifts, and exits with 1 only if one drifts.
    """
    _check_usage(repositories, revs, as_markdown=as_markdown)
    if force and not html:
        raise click.UsageError("--force is for --html: leave it out")
    _check_places(trees, wheels, repositories, baseline)
    bounds = _bounds(start, end)
    versions = bounds or versions
    introduce_project()
    unwinding()
    began = time.monotonic()
    if html:
        page_template()  # may not be installed
        check_outfile(html, force=force)
    before = read_rows(baseline) if baseline else None
    with opened() as code:
        installed = discover()
    chosen = selected(ids, (), fewer).among(installed)
    overlays = chosen if ids else tuple(item for item in installed if item.id not in fewer)
    together = [item.id for item in chosen]
    memo = None if no_cache else RowMemo.of(overlays, together, code)
    revisions = [Revision(*pair) for pair in product(repositories, revs or ("HEAD",))]
    sources: list[RowSource] = [*_wheels(wheels), *map(LocalTree, trees), *revisions]
    notes: tuple[str, ...] = ()
    if versions or projects or not sources:
        releases, notes = _releases(projects, versions, cached=not no_cache)
        notes = (*notes, *shortened(versions))
        sources = [*releases, *sources]
    _check_names(sources)
    with share(counted(len(sources), "vLLM")) as progress:
        matrix = run(sources, overlays, together, progress, memo)
    if html:
        write_outfile(html, page(matrix, version=version_of("vpatch"), made=datetime.now(UTC)), force=force)
    notes = (*notes, *(f"{row.name}: {note}" for row in matrix.rows if row.tree for note in row.tree.notes))
    if left := too_old(before or (), matrix):
        notes = (*notes, f"not compared, since all releases in {baseline} are newer: {', '.join(left)}")
    report = MatrixReport(matrix=matrix, notes=notes, seconds=time.monotonic() - began, as_markdown=as_markdown)
    for line in (*notes, report.work):
        tell(line)
    if bounds:
        patches = {item.id for item in overlays if item.patch is not None and item.point is None}
        opt_in = {item.id for item in overlays}.difference(together)
        return upgrade_report(matrix.rows, *bounds, patches=patches, written=project().selection.named, opt_in=opt_in)
    if before is None:
        return replace(report, problems=matrix.problems)
    if not (found := changes(before, matrix)):
        tell(f"nothing changed since {baseline}")
    worse = [change.problem for change in found if change.kind is Urgency.WORSE]
    return replace(report, problems=worse, changes=found)


@dataclass(frozen=True, kw_only=True)
class MatrixReport(Report):
    """The report of `matrix`; `changes` since the baseline, None without one."""

    matrix: Matrix
    seconds: float
    as_markdown: bool
    changes: Sequence[Change] | None = None

    @property
    def unseen(self) -> Sequence[Problem | str]:
        """The problems: the notes stand above the matrix."""
        return self.problems

    @property
    def read(self) -> tuple[int, int]:
        """The bytes that were read of wheels, and that they have."""
        trees = [row.tree for row in self.matrix.rows if row.tree]
        return sum(tree.received for tree in trees), sum(tree.size for tree in trees)

    @property
    def work(self) -> str:
        """What was done, in one line."""
        received, size = self.read
        done = f"{counted(len(self.matrix.rows), 'vLLM')} in {self.seconds:.1f} s"
        wheels = f"{received / 1e6:.1f} of {size / 1e6:,.0f} MB of wheels ({received / size:.2%})" if size else ""
        return f"{done}; read {wheels}" if size else done

    def fields(self) -> Mapping[str, Any]:
        """Return the rows, the work, and the changes if there is a baseline."""
        received, size = self.read
        work = {"bytes_read": received, "wheel_bytes": size, "seconds": round(self.seconds, 1)}
        found = {} if self.changes is None else {"changes": list(map(asdict, self.changes))}
        return {"rows": as_rows(self.matrix), **work, **found}

    def shown(self, width: int | None) -> Iterable[Line] | Grid:
        """Return the matrix, or the changes; a table for a terminal."""
        if self.as_markdown:
            return fitted([*markdown_changes(self.changes or ()), *markdown(self.matrix)], width)
        if self.changes is not None:
            return fitted(map(str, self.changes), width)
        return fitted(lines(self.matrix), width) if width is None else Grid(table(self.matrix))


def _check_usage(repositories: Sequence[str], revs: Sequence[str], *, as_markdown: bool) -> None:
    if revs and not repositories:
        raise click.UsageError("--rev is a revision of --git")
    if len(repositories) > 1:
        raise click.UsageError("--git is one repository; --rev may be repeated")
    if as_markdown and click.get_current_context().params.get("as_object"):
        raise click.UsageError("--markdown and --json are two forms of one result: leave one out")


def _check_places(
    trees: Sequence[Path], wheels: Sequence[Path], repositories: Sequence[str], baseline: Path | None
) -> None:
    """Refuse names of nothing, all of them at once, before anything is read."""
    missing = [Problem("no vllm", str(tree), "no such folder") for tree in trees if is_nothing(tree)]
    files = [*wheels, *filter(None, [baseline])]
    missing += [Problem("cannot read", str(file), "no such file") for file in files if is_nothing(file)]
    missing += [
        Problem("cannot read", repository, "there is no such folder, and it is no URL")
        for repository in repositories
        if not is_url(repository) and is_nothing(Path(repository))
    ]
    raise_unknown(missing)


def _bounds(start: str | None, end: str | None) -> tuple[()] | tuple[str, str]:
    """Return the releases of `--from` and `--to`, if they are given."""
    if not (start or end):
        return ()
    if not (start and end):
        raise click.UsageError("--from and --to come together")
    given = click.get_current_context().params
    others = ("versions", "projects", "wheels", "trees", "repositories", "baseline", "html", "as_markdown")
    if any(given[name] for name in others):
        raise click.UsageError("--from and --to compare two releases: name no other vLLM, baseline, page or form")
    return start, end


def _check_names(sources: Sequence[RowSource]) -> None:
    """Refuse rows of one name, which neither a reader nor a baseline could distinguish."""
    names = [source.name for source in sources]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Failure(*(Problem("asked for twice", name, "two rows would have this name") for name in twice))


def _wheels(paths: Sequence[Path]) -> list[RowSource]:
    if not paths:
        return []
    from vpatch.matrix.releases import WheelFile

    return [*map(WheelFile, paths)]


def _releases(
    projects: Sequence[str], versions: Sequence[str], *, cached: bool
) -> tuple[list[RowSource], tuple[str, ...]]:
    """Return the releases, and notes on where their lists come from."""
    from vpatch.matrix.releases import releases_of

    cache = Cache.opened() if cached else None
    listings = [releases_of(project, versions, cache) for project in projects or ("vllm",)]
    return [r for listing in listings for r in listing.releases], tuple(n for one in listings for n in one.notes)


def shortened(versions: Sequence[str]) -> list[str]:
    """Return a note for each version that looks as if it meant the newest of several releases."""
    short = [version for version in versions if re.fullmatch(r"v?\d+\.\d+", version)]
    return [f"{version} is the release {version}.0, not the newest of {version}" for version in short]
