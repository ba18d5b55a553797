"""`python -m vpatch.calls`: the command of `vpatch.calls`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from packaging.version import Version

from vpatch.calls.merge import merged
from vpatch.calls.record import Recording, record
from vpatch.core import sources
from vpatch.core.calls import Calls, file_of, write
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued, declared
from vpatch.core.verdict import State
from vpatch.errors import Failure, Problem
from vpatch.project import opened
from vpatch.testing import release
from vpatch.tree.locate import Tree, locate


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    *("-r", "--release", "releases"),
    multiple=True,
    metavar="RELEASE",
    help="A release, or a folder that holds one. Default: those of the lists that exist.",
)
@click.option(
    "--trees",
    "kept",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where releases are kept. Default: the user's cache.",
)
def main(ids: tuple[str, ...], releases: tuple[str, ...], kept: Path | None) -> None:
    """Record what the code of overlays takes from vLLM, beside their modules, in `_calls/`.

    Only releases count for which an overlay's `releases` says that it is pending. Name those on which you tested it.
    Without ID, all overlays are recorded, those of packages and of the project's file, each on a tree that has the
    others, too.
    """
    try:
        with sources.using(opened([]).sources):
            chosen = select(discover(), ids) if ids else discover()
        trees = {tree.version or name: tree for name, tree in _located(releases or _recorded_before(chosen), kept)}
        recorded = {version: _record(chosen, version, trees[version]) for version in sorted(trees, key=Version)}
    except Failure as failure:
        raise click.ClickException("\n".join(map(str, failure.problems))) from failure
    for item in chosen:
        _write(item, merged(item.id, recorded, {name: tree.read for name, tree in trees.items()}), recorded.values())


def _recorded_before(overlays: Sequence[Catalogued]) -> list[str]:
    found = {release for item in overlays if item.calls for release in item.calls.releases}
    if not found:
        raise Failure(Problem("no release", "--release", "there is no list yet that names any"))
    return sorted(found, key=Version)


def _located(releases: Sequence[str], kept: Path | None) -> Iterator[tuple[str, Tree]]:
    for name in releases:
        yield name, locate(Path(name) if "/" in name else release(name, kept))


def _record(overlays: Sequence[Catalogued], version: str, tree: Tree) -> Recording:
    click.echo(f"vLLM {version} ...", err=True)
    engine = Engine(
        one for one in overlays if declared(tuple(one.overlay.releases.items()), version)[0] is State.PENDING
    )
    with TemporaryDirectory(dir=tree.root.parent, prefix=".calls-") as scratch:  # beside it, for hard links
        return record(engine, tree, Path(scratch))


def _write(item: Catalogued, calls: Calls, recorded: Collection[Recording]) -> None:
    if not calls.releases:
        click.echo(f"{item.id}: not pending on any of these releases")
        return
    file, data = Path(file_of(item.source)), write(calls)
    changed = not file.exists() or file.read_bytes() != data
    if changed:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
    count = sum(len(taken.calls) for taken in calls.code.values())
    click.echo(f"{item.id}: {count} callees, {len(calls.releases)} releases{'' if changed else ', unchanged'}: {file}")
    for cause in dict.fromkeys(one for each in recorded for one in each.unresolved.get(item.id, ())):
        click.echo(f"  cannot be resolved, and so is not checked: {cause}")


if __name__ == "__main__":
    main(prog_name="python -m vpatch.calls")
