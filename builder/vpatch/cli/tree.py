"""The commands that work on a tree: status, diff, apply, revert, verify."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import click

from vpatch import api
from vpatch.cli import outcome
from vpatch.cli.options import examples, receipt_option, reported
from vpatch.cli.output import Report, fitted
from vpatch.cli.target import Target, on_tree
from vpatch.cli.wording import Line, as_objects, diff_line, noted, rows, table
from vpatch.core.verdict import State
from vpatch.errors import Problem

R = TypeVar("R", bound=api.Result)


@dataclass(frozen=True, kw_only=True)
class TreeReport(Report):
    """What a verb found in a vLLM, and did there; `also`: what else its JSON object has of the result."""

    found: api.Result
    verbose: bool
    also: Sequence[str] = ()

    @property
    def unseen(self) -> Sequence[Problem | str]:
        """The problems, and the notes unless there was nothing to do."""
        settled = isinstance(self.found, api.Changed) and not self.found.changed
        return self.problems if settled and not self.verbose else super().unseen

    def fields(self) -> Mapping[str, Any]:
        """Return the vLLM, the verdicts, and what was written."""
        found = self.found
        about = {"tree": str(found.tree), "vllm": found.vllm, "overlays": as_objects(found.overlays)}
        written = ("changed", "added", "removed") if isinstance(found, api.Changed) else ()
        about |= {name: list(getattr(found, name)) for name in (*written, *self.also)}
        if "not_installed" in about:
            about["not_installed"] = [{"id": name, "files": [*files]} for name, files in found.not_installed.items()]
        return about

    def shown(self, width: int | None) -> Iterator[Line]:
        """Yield a line for each overlay; if verbose, also for its parts, and for each file."""
        yield from table([*rows(self.found.overlays, parts=self.verbose)], width)
        if self.verbose:
            yield from fitted(outcome.files(self.found), width)


@dataclass(frozen=True, kw_only=True)
class DiffReport(TreeReport):
    """A diff for `patch` and pagers: people see no verdicts."""

    found: api.Diff
    exact: ClassVar[bool] = True

    def fields(self) -> Mapping[str, Any]:
        """Return the diff, too."""
        diff = "".join(f"{line}\n" for line in self.found.lines)
        own = {"diff": diff, "files": list(self.found.files), "upgradable": list(self.found.upgradable)}
        return {**super().fields(), **own}

    def shown(self, width: int | None) -> Iterator[Line]:
        """Yield the lines of the diff."""
        yield from map(diff_line, self.found.lines)


@click.command("status", epilog=examples("status", "status -v .venv", "status --json | jq '.overlays[].state'"))
@reported
@on_tree()
def status_command(target: Target) -> Report:
    """Show the state of each overlay in TREE. Writes nothing."""
    tree = target.find()
    found = api.status(tree, target.selection)
    said, offer = outcome.of_status(found, target), outcome.offer(found, target)
    notes = outcome.not_installed(found, target)
    return _report(target, found, said, ("upgradable", "not_installed"), notes, offer=offer)


@click.command("diff", epilog=examples("diff", "diff --overlay turboquant-hybrid .venv", "diff > vllm.patch"))
@reported
@on_tree()
def diff_command(target: Target) -> Report:
    """Print the unified diff that `apply` would make. Writes nothing."""
    tree = target.find()
    found = _found(lambda: api.diff(tree, target.selection))
    notes, said = noted((), found.overlays), outcome.of_diff(found, target)
    return DiffReport(found=found, verbose=target.verbose, problems=found.problems, notes=notes, outcome=said)


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
        done = _found(lambda: api.apply(tree, selection))
        return _report(target, done, outcome.of_apply(done, target), ("upgraded",))
    would = _found(lambda: api.diff(tree, selection))
    pending = would.upgradable or any(verdict.state is State.PENDING for verdict in would.overlays)
    return _report(target, would, outcome.of_diff(would, target), ("upgradable",), failed=check and bool(pending))


@click.command("revert", epilog=examples("revert", "revert --overlay turboquant-tiles .venv"))
@reported
@on_tree(also=False)
def revert_command(target: Target) -> Report:
    """Restore the pristine bytes of TREE.

    With --overlay, vpatch removes only these overlays and leaves the others applied.
    """
    tree = target.find()
    done = api.revert(tree, target.selection.only)
    return _report(target, done, outcome.of_revert(done, target), ("not_installed",))


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
        if target.path or target.python or target.typed:
            raise click.UsageError("--pid names a process: leave out TREE, --python and overlays")
        from vpatch.cli.ps import proof

        return proof(pid)
    tree, selection = target.find(), target.selection
    found = _found(lambda: api.verify(tree, selection, python=target.python))
    # Unless the user chose overlays, those that are not installed are among the problems.
    notes = outcome.not_installed(found, target) if selection.only is not None else []
    return _report(target, found, outcome.of_verify(found, target), ("not_installed",), notes)


def _found(verb: Callable[[], R]) -> R:
    """Return what a verb found, problems included."""
    try:
        return verb()
    except api.Refused as refused:
        return refused.result  # type: ignore[return-value] # of the type that the verb returns


def _report(
    target: Target, found: api.Result, said: str, also: Sequence[str], notes: Sequence[str] = (), **more: Any
) -> TreeReport:
    """Return the report of a verb, with `said` as its outcome."""
    notes = noted((*found.notes, *notes), found.overlays)
    more |= {"problems": found.problems, "notes": notes, "outcome": said}
    return TreeReport(found=found, verbose=target.verbose, also=also, **more)
