"""The commands that work on a tree: status, diff, apply, revert, verify."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click

from vpatch import api
from vpatch.cli.options import reported, tree_of, tree_options
from vpatch.cli.output import Report
from vpatch.core.verdict import State
from vpatch.tree.locate import locate

R = TypeVar("R", bound=api.Result)


@click.command("status")
@tree_options
@reported
def status_command(tree: Path | None, python: Path | None, ids: tuple[str, ...]) -> Report:
    """Say what TREE is to every overlay. Writes nothing."""
    return _report("status", api.status(tree_of(tree, python), ids or None))


@click.command("diff")
@tree_options
@reported
def diff_command(tree: Path | None, python: Path | None, ids: tuple[str, ...]) -> Report:
    """Print the unified diff that `apply` would make. Writes nothing."""
    found = _found(lambda: api.diff(tree_of(tree, python), ids or None))
    extra = {"diff": "".join(f"{line}\n" for line in found.lines), "files": list(found.files)}
    # A diff is for `patch` and pagers: people see no verdicts.
    about = ("diff", str(found.tree), found.vllm, found.overlays)
    return Report(*about, problems=found.problems, extra=extra, lines=found.lines, exact=True)


@click.command("apply")
@tree_options
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if something is pending.")
@reported
def apply_command(tree: Path | None, python: Path | None, ids: tuple[str, ...], *, check: bool) -> Report:
    """Put the selected overlays on TREE: all of them, or nothing if one does not fit."""
    if not check:
        return _report("apply", _found(lambda: api.apply(tree_of(tree, python), ids or None)))
    store = api.open_tree(tree_of(tree, python))
    found = replace(_found(lambda: api.diff(store.tree, ids or None)), vllm=store.tree.version)
    return _report("apply", found, failed=any(verdict.state is State.PENDING for verdict in found.overlays))


@click.command("revert")
@tree_options
@reported
def revert_command(tree: Path | None, python: Path | None, ids: tuple[str, ...]) -> Report:
    """Put the pristine bytes back; with --overlay, take away only these and leave the others applied."""
    return _report("revert", api.revert(tree_of(tree, python), ids or None))


@click.command("verify")
@tree_options
@reported
def verify_command(tree: Path | None, python: Path | None, ids: tuple[str, ...]) -> Report:
    """Prove that what is applied is whole.

    Postconditions hold, the names in inserted code are bound, nothing overrides it, files compile, RECORD is true, no
    stale bytecode. With --python, that interpreter would import exactly these files and, where it can import them, the
    changed functions are the ones that it gets.
    """
    return _report("verify", _found(lambda: api.verify(locate(tree, python), ids or None, python=python)))


def _found(verb: Callable[[], R]) -> R:
    """Return what a verb found, problems included."""
    try:
        return verb()
    except api.Refused as refused:
        return refused.result  # type: ignore[return-value] # of the type that the verb returns


def _report(command: str, found: api.Result, *, failed: bool = False) -> Report:
    changed = found.changed if isinstance(found, api.Changed) else ()
    about = (command, str(found.tree), found.vllm, found.overlays, changed, found.problems)
    return Report(*about, failed=failed, notes=found.notes)
