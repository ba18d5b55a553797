"""`python -m vpatch.calls`: the command of `vpatch.calls`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click
from packaging.version import Version

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
from vpatch.wrapping import from_here

if TYPE_CHECKING:
    from vpatch.calls.record import Recording


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    *("-r", "--release", "releases"),
    multiple=True,
    metavar="RELEASE",
    help="A release, or a folder that holds one. Default: those of existing lists, and the `Base` of patch files.",
)
@click.option(
    "--patches",
    multiple=True,
    envvar="VPATCH_PATCHES",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Further patch files, or folders of them, as for `vpatch status`.",
)
@click.option("--no-project", is_flag=True, help="Ignore vpatch.toml, and [tool.vpatch] in pyproject.toml.")
@click.option(
    "--trees",
    "kept",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where releases are kept. Default: the user's cache.",
)
def main(
    ids: tuple[str, ...], releases: tuple[str, ...], patches: tuple[Path, ...], kept: Path | None, *, no_project: bool
) -> None:
    """Record what the code of overlays takes from vLLM, beside their modules, in `_calls/`.

    Only releases count for which an overlay's `releases` says that it is pending, and the `Base` of a patch file. Name
    those on which you tested it. An ID that is pending on none of them is an error. Without ID, all overlays are
    recorded, those of packages and of the project's file, each on a tree that has the others, too.
    """
    try:
        with sources.using(opened(patches, ignored=no_project).sources):
            chosen = select(discover(), ids) if ids else discover()
        from vpatch.calls.merge import merged  # late: `--help` works without jedi

        trees = {tree.version or name: tree for name, tree in _located(releases or _known(chosen), kept)}
        recorded = {version: _record(chosen, version, trees[version]) for version in sorted(trees, key=Version)}
    except Failure as failure:
        raise click.ClickException("\n".join(map(str, failure.problems))) from failure
    reads = {name: tree.read for name, tree in trees.items()}
    written = [_write(item, merged(item.id, recorded, reads), recorded.values()) for item in chosen]
    if ids and not all(written):
        raise SystemExit(1)


def _known(overlays: Sequence[Catalogued]) -> list[str]:
    """Return the releases of existing lists, and the `Base` of patch files."""
    found = {release for item in overlays for release in (*(item.calls.releases if item.calls else ()), *_bases(item))}
    if not found:
        raise Failure(Problem("no release", "--release", "there is no list yet that names any"))
    return sorted(found, key=Version)


def _bases(item: Catalogued) -> tuple[str, ...]:
    """Return the releases that a patch file was written for; none of a module."""
    shapes = chain.from_iterable(part.shapes for part in item.overlay.parts)
    return () if item.patch is None else tuple(shape.name for shape in shapes)


def _is_pending(item: Catalogued, version: str) -> bool:
    state, _ = declared(tuple(item.overlay.releases.items()), version)
    if state is None:
        return Version(version).public in {Version(base).public for base in _bases(item)}
    return state is State.PENDING


def _located(releases: Sequence[str], kept: Path | None) -> Iterator[tuple[str, Tree]]:
    for name in releases:
        yield name, locate(Path(name) if "/" in name else release(name, kept))


def _record(overlays: Sequence[Catalogued], version: str, tree: Tree) -> Recording:
    click.echo(f"vLLM {version} ...", err=True)
    from vpatch.calls.record import record

    engine = Engine(one for one in overlays if _is_pending(one, version))
    with TemporaryDirectory(dir=tree.root.parent, prefix=".calls-") as scratch:  # beside it, for hard links
        return record(engine, tree, Path(scratch))


def _write(item: Catalogued, calls: Calls, recorded: Collection[Recording]) -> bool:
    """Write the list of an overlay, and print what is in it; return whether anything was recorded."""
    if not calls.releases:
        field = "`releases`" if item.patch is None else "`Releases` and `Base`"
        click.echo(f"{item.id}: nothing recorded: by its {field}, it is pending on none of these releases", err=True)
        return False
    file, data = Path(file_of(item.source)), write(calls)
    changed = not file.exists() or file.read_bytes() != data
    if changed:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
    count = sum(len(taken.calls) for taken in calls.code.values())
    on = f"on {', '.join(calls.releases)}{'' if changed else ', unchanged'}"
    click.echo(f"{from_here(file)}\n{item.id}: {count} callee{'s' * (count != 1)} {on}")
    for cause in dict.fromkeys(one for each in recorded for one in each.unresolved.get(item.id, ())):
        click.echo(f"  cannot be resolved, and so is not checked: {cause}")
    return True


if __name__ == "__main__":
    main(prog_name="python -m vpatch.calls")
