"""Apply and revert overlays: what the engine computes is written to a tree.

def plan(seen: Snapshot) -> WritePlan:
    return prepare(seen, engine.plan(seen.read), engine.overlays, keep=True, made={})

done = plan(tree.snapshot())  # reads each file once, and decides what to write
if done.work:
    done = done.commit(plan)  # locks, reads again, decides anew if something differs, and writes
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from vpatch.core.catalogue import applied_beside
from vpatch.core.engine import Engine
from vpatch.core.marks import marks_in, overlays_of
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import Changeset, State, Verdict
from vpatch.errors import Code, Failure, Problem, raise_all, shell
from vpatch.manifest import sha256
from vpatch.tree import record
from vpatch.tree.locate import Reads, is_checkout
from vpatch.tree.upgrade import marks, pristine, upgrade_of
from vpatch.wrapping import from_here

_NOTHING = Changeset((), (), {}, ())


class _Readable(Protocol):
    @property
    def root(self) -> Path: ...

    @property
    def version(self) -> str | None: ...

    def read(self, path: str) -> bytes | None: ...


class Snapshot(Protocol):
    """One vLLM that overlays can be applied to, as one run reads it: what was read is remembered until `refresh`."""

    @property
    def tree(self) -> _Readable:
        """The tree, which remembers nothing."""

    @property
    def originals(self) -> Mapping[str, bytes | None]:
        """The pristine bytes of every file that vpatch changed; None for a file that it added."""

    @property
    def unrecognized(self) -> Collection[str]:
        """The files that vpatch changed, and whose bytes are neither pristine nor known to be its own."""

    def snapshot(self) -> Snapshot:
        """Begin another run."""

    def read(self, path: str) -> bytes | None:
        """Read a file; return None if it does not exist."""

    def refresh(self) -> bool:
        """Read again everything that was read; return whether something differs."""

    def lock(self) -> AbstractContextManager[None]:
        """Keep other runs of vpatch away during the block."""

    def decide(
        self,
        desired: Mapping[str, bytes],
        note: object,
        *,
        on_edits: bool,
        made: Mapping[str, bytes],
        patches: Mapping[str, bytes],
        discard: bool = False,
    ) -> Writes:
        """Decide what to write so that the tree is as `desired`. Nothing is written and no lock is taken.

        Args:
            desired: the bytes of every file that overlays change or add, on disk already or not. Every other file that
                vpatch changed goes back to what it was.
            note: JSON-able, kept beside the tree for people.
            on_edits: `desired` was computed from the files as they are. Without it, a user's edit that `desired` would
                undo is a problem.
            made: bytes that overlays make of the originals. An unrecognized file that has them is not edited.
            patches: the patch files among the overlays of `desired`, by id; a copy of each is kept beside the tree.
            discard: a user's edit that `desired` would undo is no problem: it is undone.
        """


@dataclass(frozen=True)
class Writes:
    """What a run writes.

    Attributes:
        changed: the paths, sorted.
        edited: the files in which a user's edits stay.
        work: whether there is anything to do at all.
        carry_out: does it.
        upgraded: the ids of overlays of which it replaces another version.
        restored: the ids of overlays that were applied, and of which it writes missing files again.
        files: what it writes to vLLM's files, by path; None removes one.
    """

    changed: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()
    work: bool = False
    carry_out: Callable[[], None] = lambda: None
    upgraded: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    files: Mapping[str, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True)
class WritePlan:
    """A changeset, and what has to be written for it, or why it cannot be."""

    snapshot: Snapshot
    changeset: Changeset
    writes: Writes = Writes()
    failure: Failure | None = None

    @property
    def work(self) -> bool:
        """Whether `commit` has anything to do."""
        return self.failure is not None or self.writes.work

    def commit(self, prepare: Callable[[Snapshot], WritePlan]) -> WritePlan:
        """Write under the lock, and return the plan that was carried out.

        If the tree differs from the snapshot by then, `prepare` decides anew. After a failure, the tree is as it was,
        unless the failure says that the next run completes it.
        """
        with self.snapshot.lock():
            plan = prepare(self.snapshot) if self.snapshot.refresh() else self
            if plan.failure is not None:
                raise plan.failure
            if plan.writes.work:
                plan.writes.carry_out()
        return plan


def prepare(
    snapshot: Snapshot,
    changeset: Changeset,
    known: Sequence[Catalogued],
    *,
    keep: bool,
    made: Mapping[str, bytes],
    discard: bool = False,
) -> WritePlan:
    """Decide what to write for a changeset; one with problems changes nothing.

    With `keep`, what earlier runs changed stays, and so do users' edits; else it goes back to what it was. `known` has
    the overlays that may be in the tree; `made` and `discard` are as of `Snapshot.decide`.
    """
    if changeset.problems:
        return WritePlan(snapshot, changeset)
    desired = changeset.files
    if keep:
        present = {file: (snapshot.read(file), original) for file, original in snapshot.originals.items()}
        kept = {file: now for file, (now, original) in present.items() if now is not None and now != original}
        desired = {**kept, **changeset.files}
    # For people: which overlays are in which files.
    marked = overlays_of(desired)
    overlays = sorted(set().union(*marked.values()))
    patches = {item.id: item.patch for item in known if item.id in overlays and item.patch is not None}
    pins = {name: {"sha256": sha256(data)} for name, data in patches.items()}
    files = {name: sorted(file for file, names in marked.items() if name in names) for name in overlays}
    note = [{"id": name, "files": files[name], **pins.get(name, {})} for name in overlays]
    try:
        writes = snapshot.decide(desired, note, on_edits=keep, made=made, patches=patches, discard=discard)
        return WritePlan(snapshot, changeset, writes)
    except Failure as failure:
        return WritePlan(snapshot, changeset, failure=failure)


def apply(
    tree: Snapshot,
    overlays: Sequence[Catalogued],
    engine: Engine | None = None,
    installed: Sequence[Catalogued] | None = None,
) -> tuple[Changeset, Writes]:
    """Apply overlays to a tree; return the changeset and what was written.

    `engine` is one that has these overlays, to share what it has parsed; `installed` are all that may be in the tree,
    by default only these. What another version of them wrote is upgraded, see `upgrade_of`. The plan is made before any
    lock is taken, so that a tree on which everything is applied may be read-only.
    """
    engine = engine or Engine(overlays)
    known = Engine(overlays if installed is None else installed)

    def plan(seen: Snapshot) -> WritePlan:
        beside = applied_beside(overlays, known.overlays, seen.read)
        changeset = engine.plan(seen.read, overlays, beside)
        if (upgrade := upgrade_of(seen, known, overlays, changeset.before)) is None:
            return prepare(seen, changeset, known.overlays, keep=True, made=what_it_made(seen, known))
        done = prepare(seen, upgrade.changeset, known.overlays, keep=False, made={})
        if upgrade.changeset.problems:
            return done
        restored = upgrade.overlays if upgrade.missing else ()
        return replace(done, writes=replace(done.writes, upgraded=upgrade.replaced, restored=restored))

    done = plan(tree.snapshot())
    if done.work:
        done = done.commit(plan)
    return done.changeset, done.writes


def revert(
    tree: Snapshot,
    installed: Sequence[Catalogued],
    overlays: Collection[Catalogued] | None,
    engine: Engine | None = None,
    *,
    dry: bool = False,
    discard: bool = False,
) -> Writes:
    """Revert `overlays`, all if None and nothing if empty; return what was put back, or would be if `dry`.

    What stays is computed anew from the pristine bytes, so that nothing is left of what goes. It is a failure, and
    nothing is written, if a user edited a file that has to change, unless these edits are to be discarded, or if marks
    of what is to go, or of unknown overlays, would remain. An overlay that is not applied is no failure.
    """
    if overlays is not None and not overlays:
        return Writes()
    engine = engine or Engine(installed)

    def plan(seen: Snapshot) -> WritePlan:
        try:
            made = what_it_made(seen, engine)
            going = {item.id for item in overlays or ()} & marks(seen).keys()
            changeset = _without(seen, installed, going, engine, made) if going else _NOTHING
            keep = overlays is not None and not going  # a killed run may have left something
            done = prepare(seen, changeset, installed, keep=keep, made=made, discard=discard and not keep)
        except Failure as failure:  # raised by `commit`, if it is still so under the lock
            return WritePlan(seen, _NOTHING, failure=failure)
        if done.failure is None and (left := left_by(seen, done.writes)):
            if not done.writes.work:  # so there may be nothing to lock
                raise_all(left)
            return WritePlan(seen, _NOTHING, failure=Failure(*left))
        return done

    def left_by(seen: Snapshot, writes: Writes) -> list[Problem]:
        """Report what would be left of what is to go: all or nothing is reverted."""

        def read(file: str) -> bytes | None:
            return writes.files[file] if file in writes.files else seen.read(file)

        gone = installed if overlays is None else overlays
        files = ((file, item.id) for item in gone for file in item.overlay.files)
        left = {(file, name) for file, name in files if name in marks_in(read(file) or b"")}
        cause = "vpatch keeps no original of it: reinstall vLLM, or revert the commit that has it"
        problems = [Problem("cannot revert", file, f"{name} is applied, and {cause}") for file, name in sorted(left)]
        return [*problems, *(unknown_marks(read, installed) if overlays is None else ())]

    done = plan(tree.snapshot())
    if dry:
        raise_all(done.failure.problems if done.failure else ())
        return done.writes
    if done.work:
        done = done.commit(plan)
    return done.writes


def unknown_marks(
    read: Callable[[str], bytes | None], installed: Sequence[Catalogued], changed: Collection[str] = ()
) -> list[Problem]:
    """Report marks of overlays that are not installed, in the files that the installed ones change.

    In `changed`, files that vpatch keeps an original of, such a mark is the work of an overlay whose package is gone.
    Elsewhere it may as well be a comment that vLLM itself or somebody else wrote.
    """
    known = {item.id for item in installed}
    found = []
    for file in sorted({file for item in installed for file in item.overlay.files}.difference(changed)):
        data = read(file) or b""
        for number, line in enumerate(data.split(b"\n") if marks_in(data) else (), 1):
            for name in dict.fromkeys(marks_in(line)):
                if name not in known:
                    cause = "no overlay of this name is installed: install its package, or reword a mere comment"
                    why = f"line {number} has `# vpatch: {name}`, and {cause}"
                    found.append(Problem("unknown mark", file, why, code=Code.UNKNOWN_MARK))
    return found


def what_it_made(seen: Snapshot, engine: Engine) -> Mapping[str, bytes]:
    """Compute what the overlays in a tree make of its pristine bytes, where a file is not recognized.

    A user edited such a file. If an overlay was added since and the edit is undone, its bytes are vpatch's work, and
    yet no run ever wrote them.
    """
    if not seen.unrecognized:
        return {}
    here = marks(seen).keys()
    return engine.plan(partial(pristine, seen), [item for item in engine.overlays if item.id in here]).files


def _without(
    seen: Snapshot,
    installed: Sequence[Catalogued],
    going: Collection[str],
    engine: Engine,
    made: Mapping[str, bytes],
) -> Changeset:
    """Plan the tree, from its pristine bytes, with the overlays that stay.

    An edited file of which these make the same as all overlays together has nothing of what goes, and stays.
    """
    marked = marks(seen)
    # One by one: a conflict between some of them does not matter for what is applied already.
    here = [item for item in installed if item.id in marked]
    states = {item.id: engine.status(seen.read, [item])[0].state for item in here}
    applied = {name for name, state in states.items() if state is State.APPLIED}
    reasons = {
        name: f"{name} is in it, and is {states.get(name, 'not installed')}"
        for name in sorted(marked.keys() - going - applied)
    }
    upgrade = upgrade_of(seen, engine, here, engine.status(seen.read, here)) if reasons else None
    hints = dict.fromkeys(reasons, "`vpatch revert` without --overlay removes all")
    for name in reasons.keys() & {*(upgrade.overlays if upgrade else ())}:
        first = shell("vpatch", "apply", "--overlay", name, from_here(seen.tree.root))
        hints[name] = f"another version of it is applied: run {first} first, which upgrades it"
    raise_all(Problem("cannot keep", marked[name][0], reasons[name], hint=hint) for name, hint in hints.items())
    stay = [item for item in installed if item.id in applied.difference(going)]
    changeset = engine.plan(partial(pristine, seen), stay)
    raise_all(changeset.problems)
    untouched = [file for file in seen.unrecognized if file in made and made[file] == changeset.files.get(file)]
    kept = {file: now for file in untouched if (now := seen.read(file)) is not None}
    return replace(changeset, files={**changeset.files, **kept})


def obstacle(seen: Reads, verdicts: Sequence[Verdict]) -> Problem | None:
    """Return why nothing can be written to a tree where overlays are pending; None if something can."""
    if not is_checkout(seen.tree) and any(verdict.state is State.PENDING for verdict in verdicts):
        try:
            record.required(seen.tree, seen.read)
        except Failure as failure:
            return failure.problems[0]
    return None
