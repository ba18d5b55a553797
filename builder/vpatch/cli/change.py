"""The commands that change a tree: apply, revert."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from vpatch.api import apply, revert
from vpatch.cli.options import chosen, not_applicable, reported, site_of, tree_options
from vpatch.cli.output import Report
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import State, Verdict
from vpatch.tree import Writable
from vpatch.tree.locate import is_checkout
from vpatch.tree.write_plan import SitePackages


def store_of(tree: Path | None, python: Path | None) -> Writable:
    """Find the tree that is meant, to change it."""
    site = site_of(tree, python)
    if not is_checkout(site):
        return SitePackages(site)
    from vpatch.tree.checkout import Checkout

    return Checkout.at(site)


@click.command("apply")
@tree_options
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if something is pending.")
@reported
def apply_command(tree: Path | None, python: Path | None, ids: tuple[str, ...], *, check: bool) -> Report:
    """Put the selected overlays on TREE: all of them, or nothing if one does not fit."""
    store, overlays = store_of(tree, python), chosen(ids)
    site = store.tree
    changed: tuple[str, ...] = ()
    if check:
        changeset = Engine(overlays).plan(site.read)
        verdicts = changeset.before
    else:
        changeset, changed = apply(store, overlays)
        verdicts = changeset.after
    problems = [*changeset.problems, *not_applicable(verdicts, ids, str(site.root))]
    pending = check and any(v.state is State.PENDING for v in verdicts)
    told = notes(overlays, verdicts)
    return Report("apply", str(site.root), site.version, verdicts, changed, problems, failed=pending, notes=told)


def notes(overlays: Sequence[Catalogued], verdicts: Sequence[Verdict]) -> list[str]:
    """List what users of a tree have to know of the shapes that are applied to it, or are about to be."""
    parts = {(item.id, part.name): part for item in overlays for part in item.overlay.parts}
    found = (
        f"{verdict.id}: {shape.note}"
        for verdict in verdicts
        for part in verdict.parts
        for shape in parts[verdict.id, part.name].shapes
        if shape.note and shape.name == part.shape and part.state in {State.APPLIED, State.PENDING}
    )
    return [*dict.fromkeys(found)]


@click.command("revert")
@tree_options
@reported
def revert_command(tree: Path | None, python: Path | None, ids: tuple[str, ...]) -> Report:
    """Put the pristine bytes back; with --overlay, take away only these and leave the others applied."""
    store = store_of(tree, python)
    installed = discover()
    changed = revert(store, installed, select(installed, ids) if ids else None)
    return Report("revert", str(store.tree.root), store.tree.version, changed=changed)
