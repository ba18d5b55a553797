"""The commands that work on a tree: status, diff, apply, revert, verify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from vpatch import api
from vpatch.cli import outcome
from vpatch.cli.options import examples, receipt_option, reported
from vpatch.cli.output import Report
from vpatch.cli.ps import proof
from vpatch.cli.target import Target, on_tree
from vpatch.core.verdict import State

R = TypeVar("R", bound=api.Result)


@click.command("status", epilog=examples("status", "status -v .venv", "status --json | jq '.overlays[].state'"))
@reported
@on_tree()
def status_command(target: Target) -> Report:
    """Show the state of each overlay in TREE. Writes nothing."""
    tree = target.find()
    found = api.status(tree, target.selection.only, target.selection.also)
    said, offer = outcome.of_status(found, target), outcome.offer(found, target)
    return _report("status", target, found, said, offer=offer, notes=outcome.not_installed(found, target))


@click.command("diff", epilog=examples("diff", "diff --overlay turboquant-hybrid .venv", "diff > vllm.patch"))
@reported
@on_tree()
def diff_command(target: Target) -> Report:
    """Print the unified diff that `apply` would make. Writes nothing."""
    tree = target.find()
    found = _found(lambda: api.diff(tree, target.selection.only, target.selection.also))
    assert isinstance(found, api.Diff)  # noqa: S101 - for mypy
    extra = {"diff": "".join(f"{line}\n" for line in found.lines), "files": list(found.files)}
    extra["upgradable"] = list(found.upgradable)
    # A diff is for `patch` and pagers: people see no verdicts.
    about = ("diff", str(found.tree), found.vllm, found.overlays)
    said = outcome.of_diff(found, target)
    return Report(*about, problems=found.problems, extra=extra, lines=found.lines, exact=True, outcome=said)


@click.command(
    "apply",
    epilog=examples(
        "apply", "apply --with turboquant-tiles --receipt", "apply --dry-run .venv", "apply --check  # for CI"
    ),
)
@reported
@on_tree()
@receipt_option
@click.option("-n", "--dry-run", is_flag=True, help="Write nothing; show what would change.")
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if something is pending.")
def apply_command(target: Target, *, check: bool, dry_run: bool) -> Report:
    """Apply the selected overlays to TREE.

    If one of them does not fit, vpatch writes nothing. A second run changes nothing, and a newer vpatch upgrades what
    an older one applied. `vpatch revert` undoes it.
    """
    if check and dry_run:
        raise click.UsageError("--check and --dry-run both write nothing: leave one out")
    tree, selection = target.find(), target.selection
    if not (check or dry_run):
        done = _found(lambda: api.apply(tree, selection.only, selection.also))
        said = outcome.of_apply(done, target)
        return _report("apply", target, done, said)
    would = _found(lambda: api.diff(tree, selection.only, selection.also))
    said = outcome.of_diff(would, target)
    pending = would.upgradable or any(verdict.state is State.PENDING for verdict in would.overlays)
    return _report("apply", target, would, said, failed=check and bool(pending))


@click.command("revert", epilog=examples("revert", "revert --overlay turboquant-tiles .venv"))
@reported
@on_tree(also=False)
def revert_command(target: Target) -> Report:
    """Restore the pristine bytes of TREE.

    With --overlay, vpatch removes only these overlays and leaves the others applied.
    """
    tree = target.find()
    done = api.revert(tree, target.selection.only)
    return _report("revert", target, done, outcome.of_revert(done, target))


@click.command("verify", epilog=examples("verify", 'verify --python "$(command -v python)"', "verify --pid 4242"))
@reported
@on_tree(both=True)
@click.option("--pid", type=click.IntRange(1), metavar="PID", help="Check what this running process claims, instead.")
def verify_command(target: Target, *, pid: int | None) -> Report:
    """Check that what is applied is complete.

    Postconditions hold, the names in inserted code are bound, nothing overrides it, files compile, RECORD is true, no
    bytecode is stale. With --python, that interpreter must import exactly these files and, where it can import them,
    run the changed functions.

    With --pid, vpatch checks a running process instead: it holds a receipt, of `vpatch run` or the overlay `receipt`,
    it was started for these overlays, and the files that it sees are as the receipt claims.
    """
    if pid is not None:
        if target.path or target.python or target.selection.named:
            raise click.UsageError("--pid names a process: leave out TREE, --python and overlays")
        return proof(pid)
    tree, selection = target.find(), target.selection
    found = _found(lambda: api.verify(tree, selection.only, selection.also, python=target.python))
    # Unless the user chose overlays, those that are not installed are among the problems.
    notes = outcome.not_installed(found, target) if selection.only is not None else []
    return _report("verify", target, found, outcome.of_verify(found, target), notes=notes)


def _found(verb: Callable[[], R]) -> R:
    """Return what a verb found, problems included."""
    try:
        return verb()
    except api.Refused as refused:
        return refused.result  # type: ignore[return-value] # of the type that the verb returns


def _report(
    command: str,
    target: Target,
    found: api.Result,
    said: str,
    *,
    failed: bool = False,
    offer: str = "",
    notes: Sequence[str] = (),
) -> Report:
    changed: Sequence[str] = ()
    extra: dict[str, Any] = {}
    if isinstance(found, api.Changed):
        changed, extra = found.changed, {"added": list(found.added), "removed": list(found.removed)}
        extra |= {"upgraded": list(found.upgraded)} if command == "apply" else {}
    elif command != "verify":
        extra["upgradable"] = list(found.upgradable)
    if command != "apply":
        gone = found.not_installed.items()
        extra["not_installed"] = [{"id": name, "files": list(files)} for name, files in gone]
    about = (command, str(found.tree), found.vllm, found.overlays, changed, found.problems, extra)
    details = outcome.files(found) if target.verbose else []
    settled = isinstance(found, api.Changed) and not found.changed
    return Report(
        *about,
        failed=failed,
        notes=(*found.notes, *notes),
        verbose=target.verbose,
        details=details,
        settled=settled,
        offer=offer,
        outcome=said,
    )
