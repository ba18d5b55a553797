"""The commands that work on a tree: status, diff, apply, revert, verify."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import click

from vpatch import api
from vpatch.cli import discarding, outcome
from vpatch.cli.options import examples, receipt_option, reported
from vpatch.cli.output import Failed, Report, fitted, for_people
from vpatch.cli.target import Target, on_tree
from vpatch.cli.wording import Aside, Line, as_objects, diff_line, listed, noted, rows, table
from vpatch.core.catalogue import discover
from vpatch.core.marks import marked_files
from vpatch.core.verdict import UNPROVED, UNRECORDED, State
from vpatch.errors import Code, Failure, Problem
from vpatch.tree.locate import Tree
from vpatch.tree.standing import at

R = TypeVar("R", bound=api.Result)


@dataclass(frozen=True, kw_only=True)
class TreeReport(Report):
    """What a verb found in a vLLM, and did there.

    Attributes:
        also: what else its JSON object has of the result.
        summaries: by overlay, what it is, for people.
    """

    found: api.Result
    verbose: bool
    also: Sequence[str] = ()
    summaries: Mapping[str, str] = field(default_factory=dict)

    @property
    def unseen(self) -> Sequence[Problem | str]:
        """The problems, and the notes; of a run that had nothing to do, those on edits, which it did not undo.

        With `--quiet`, none to act upon at leisure; and without `--verbose`, none on functions whose body is new.
        """
        settled = isinstance(self.found, api.Changed) and not self.found.changed and not self.verbose
        notes = [note for note in self.notes if not settled or note.partition(": ")[0] in self.found.edited]
        notes = [note for note in notes if self.verbose or not note.endswith(UNPROVED)]
        return (*self.problems, *(note for note in notes if for_people() or not note.startswith(UNRECORDED)))

    def fields(self) -> Mapping[str, Any]:
        """Return the vLLM, the verdicts, and what was written."""
        found = self.found
        about: dict[str, Any] = {"tree": str(found.tree), "vllm": found.vllm, "overlays": as_objects(found.overlays)}
        written = ("changed", "added", "removed") if isinstance(found, api.Changed) else ()
        about |= {name: list(getattr(found, name)) for name in (*written, *self.also)}
        if "not_installed" in about:
            about["not_installed"] = [{"id": name, "files": [*files]} for name, files in found.not_installed.items()]
        if "edited" in about:
            about["edited"] = dict(found.edited)
        if "digest" in about:
            about["digest"] = found.digest or None
        return about

    def shown(self, width: int | None) -> Iterator[Line]:
        """Yield a line for each overlay; if verbose, also for its parts, and for each file."""
        shown = rows(self.found.overlays, parts=self.verbose, summaries=self.summaries, changed=self._changed)
        yield from table([*shown], width)
        if self.verbose:
            yield from fitted(outcome.files(self.found), width)

    def _changed(self, overlay: str, files: Sequence[str]) -> Sequence[str]:
        return marked_files(overlay, files, Tree(self.found.tree, None, None).read)


@dataclass(frozen=True, kw_only=True)
class DiffReport(TreeReport):
    """A diff for `patch` and pagers: people see no verdicts."""

    found: api.Diff
    exact: ClassVar[bool] = True

    def fields(self) -> Mapping[str, Any]:
        """Return the diff, too."""
        diff = "".join(f"{line}\n" for line in self.found.lines)
        own: dict[str, Any] = {"diff": diff, "files": list(self.found.files), "edited": dict(self.found.edited)}
        own["upgradable"] = list(self.found.upgradable)
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
    offer = outcome.offer(found, target)
    said = outcome.of_status(found, target) + outcome.unselected(found, target, every=True)
    notes = outcome.not_installed(found, target)
    about = {item.id: Aside(item.overlay.summary.rstrip(".")) for item in discover()} | _edits(found)
    also = ("upgradable", "not_installed", "edited", "digest")
    return _report(target, found, said, also, notes, offer=offer, summaries=about)


@click.command("diff", epilog=examples("diff", "diff --overlay turboquant-hybrid .venv", "diff --applied > vllm.patch"))
@reported
@on_tree()
@click.option("--applied", is_flag=True, help="The diff of what stands in TREE now, to its originals, instead.")
@click.option("--edits", is_flag=True, help="The diff of what others edited after vpatch, in its files, instead.")
def diff_command(target: Target, *, applied: bool, edits: bool) -> Report:
    """Print the unified diff that `apply` would make. Writes nothing.

    With --applied, print what is in TREE now: the overlays, and what others edited in the same files since, which is
    named. With --overlay as well, print what these overlays changed. With --edits, print the edits alone.
    """
    if applied and edits:
        raise click.UsageError("--applied and --edits are two diffs: leave one out")
    tree = target.find()
    if applied or edits:
        return _standing(target, api.applied(tree, target.selection.only, edits=edits), edits=edits)
    found = _found(lambda: api.diff(tree, target.selection))
    notes = noted((), found.overlays, target.sources)
    said = outcome.of_diff(found, target) + outcome.unselected(found, target)
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
    if not (check or dry_run):
        return _applied(target)
    tree, selection = target.find(), target.selection
    would = _found(lambda: api.diff(tree, selection))
    pending = would.files or would.upgradable or any(one.state is State.PENDING for one in would.overlays)
    said = outcome.of_diff(would, target) + outcome.unselected(would, target)
    return _report(target, would, said, ("upgradable", "edited", "digest"), failed=check and bool(pending))


def _applied(target: Target) -> Report:
    """Apply the overlays; if the system lets this user write nothing there, report what does without."""
    try:
        done = _found(lambda: api.apply(target.find(), target.selection))
    except Failure as failure:
        if not any(problem.code in {Code.DENIED, Code.READ_ONLY} for problem in failure.problems):
            raise
        said = f"To run vLLM with these overlays without a write to its files: {target.instead()}."
        return Failed.of(failure, tree=str(target.path) if target.path else None, outcome=said)
    said = outcome.of_apply(done, target) + outcome.unselected(done, target)
    return _report(target, done, said, ("upgraded", "edited", "digest"))


@click.command("revert", epilog=examples("revert", "revert --overlay turboquant-tiles .venv", "revert --dry-run"))
@reported
@on_tree(also=False)
@click.option("-n", "--dry-run", is_flag=True, help="Write nothing; show what would change.")
@click.option("--force", is_flag=True, help="Discard others' edits in these files: shows them, and keeps a copy.")
def revert_command(target: Target, *, dry_run: bool, force: bool) -> Report:
    """Restore the pristine bytes of TREE.

    With --overlay, vpatch removes only these overlays and leaves the others applied.

    It refuses a file that was edited after vpatch. With --force, these edits go, too: vpatch prints them as a diff, and
    keeps that in the user's folder for state ($XDG_STATE_HOME).
    """
    tree, only = target.find(), target.selection.only
    discarded = discarding.show(target, tree, keep=not dry_run) if force else ""
    done = api.revert(tree, only, dry_run=dry_run, force=force)
    said = outcome.of_revert(done, target, dry_run=dry_run, force=force)
    return _report(target, done, said, ("not_installed",), [discarded] if discarded else [])


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
    said = outcome.of_verify(found, target) + outcome.unselected(found, target)
    return _report(target, found, said, ("not_installed", "edited", "digest"), notes, summaries=_edits(found))


def _edits(found: api.Result) -> dict[str, Aside]:
    """Return a remark on each overlay of which files were edited after vpatch."""
    edits = {one.id: [file for file in found.edited if file in one.files] for one in found.overlays}
    return {name: Aside(f"edited after vpatch: {listed(files)}") for name, files in edits.items() if files}


def _standing(target: Target, found: api.Diff, *, edits: bool) -> DiffReport:
    alone = f": {target.command('diff', '--edits')} shows it alone"
    edited = {} if edits else found.edited
    notes = [f"{file}: edited after vpatch, {at(places)}{alone}" for file, places in edited.items()]
    said = outcome.of_edits(found, target) if edits else outcome.of_applied(found)
    return DiffReport(found=found, verbose=target.verbose, notes=notes, outcome=said)


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
    notes = noted((*found.notes, *notes), found.overlays, target.sources)
    more |= {"problems": found.problems, "notes": notes, "outcome": said}
    return TreeReport(found=found, verbose=target.verbose, also=also, **more)
