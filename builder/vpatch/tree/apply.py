"""Apply and revert: what the engine computes is written to a tree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from vpatch.core.engine import Engine
from vpatch.core.marks import marks_in
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import Changeset, State
from vpatch.errors import Failure, Problem
from vpatch.tree import Snapshot, WritePlan

_NOTHING = Changeset((), (), {}, ())


def apply(
    tree: Snapshot, overlays: Sequence[Catalogued], engine: Engine | None = None
) -> tuple[Changeset, tuple[str, ...]]:
    """Apply overlays to a tree; return the changeset and the paths that were written.

    `engine` is one that has these overlays, to share what it has parsed. The plan is made before any lock is taken, so
    that a tree on which everything is applied may be read-only.

    Raises:
        Failure: the tree cannot be read or written.
    """
    engine = engine or Engine(overlays)

    def prepare(seen: Snapshot) -> WritePlan:
        return seen.prepare(engine.plan(seen.read, overlays), keep=True)

    done = prepare(tree.snapshot())
    if done.work:
        done = done.commit(prepare)
    return done.changeset, done.writes.changed


def revert(
    tree: Snapshot,
    installed: Sequence[Catalogued],
    overlays: Collection[Catalogued] | None,
    engine: Engine | None = None,
) -> tuple[str, ...]:
    """Revert `overlays`, or all if None; return the paths that were put back.

    What stays is computed anew from the pristine bytes, so that nothing is left of what goes.

    Raises:
        Failure: a user edited a file after vpatch, an overlay to remove is not applied, one that stays cannot be
            computed, or marks remain of overlays that are not installed.
    """
    engine = engine or Engine(installed)

    def prepare(seen: Snapshot) -> WritePlan:
        try:
            if overlays is not None and seen.originals:
                return seen.prepare(_without(seen, installed, overlays, engine), keep=False)
            plan = seen.prepare(_NOTHING, keep=False)
            if overlays is not None and plan.work:
                raise Failure(*(_not_applied(seen, item.id) for item in overlays))
            return plan
        except Failure as failure:  # raised by `commit`, if it is still so under the lock
            return WritePlan(seen, _NOTHING, failure=failure)

    done = prepare(tree.snapshot())
    if done.work:
        done = done.commit(prepare)
    changed, read = done.writes.changed, tree.tree.read
    gone = installed if overlays is None else overlays
    left = {(file, item.id) for item in gone for file in edited(item) if item.id in marks_in(read(file) or b"")}
    cause = "vpatch keeps no original of it: reinstall vLLM, or revert the commit that has it"
    problems = [Problem("cannot revert", file, f"{name} is applied, and {cause}") for file, name in sorted(left)]
    if overlays is None:
        problems += unknown_marks(read, installed)
    if problems:
        raise Failure(*problems)
    if overlays is not None and not changed:
        raise Failure(*(_not_applied(tree, item.id) for item in overlays))
    return changed


def unknown_marks(
    read: Callable[[str], bytes | None], installed: Sequence[Catalogued], changed: Collection[str] = ()
) -> list[Problem]:
    """Report marks of overlays that are not installed, in the files that the installed ones change.

    In `changed`, files that vpatch keeps an original of, such a mark is the work of an overlay whose package is gone.
    Elsewhere it may as well be a comment that vLLM itself or somebody else wrote.
    """
    known = {item.id for item in installed}
    found = []
    for file in sorted(set().union(*map(edited, installed)) - set(changed)):
        for number, line in enumerate((read(file) or b"").split(b"\n"), 1):
            for name in dict.fromkeys(marks_in(line)):
                if name not in known:
                    cause = "no overlay of this name is installed: install its package, or reword a mere comment"
                    found.append(Problem("unknown mark", file, f"line {number} has `# vpatch: {name}`, and {cause}"))
    return found


def edited(item: Catalogued) -> set[str]:
    """Return the files that an overlay changes or adds."""
    return {file for part in item.overlay.parts for file in part.files}


def _without(
    seen: Snapshot,
    installed: Sequence[Catalogued],
    overlays: Collection[Catalogued],
    engine: Engine,
) -> Changeset:
    """Plan the tree, from its pristine bytes, with the overlays that stay.

    Raises:
        Failure: an overlay to remove is not applied, or one that stays cannot be computed.
    """
    originals, going = seen.originals, {item.id for item in overlays}
    marks = {name: file for file in sorted(originals) for name in marks_in(seen.read(file) or b"")}
    # One by one: a conflict between some of them does not matter for what is applied already.
    here = [item for item in installed if item.id in marks]
    states = {item.id: engine.status(seen.read, [item])[0].state for item in here}
    applied = {name for name, state in states.items() if state is State.APPLIED}
    problems = [_not_applied(seen, name) for name in sorted(going - marks.keys())] or [
        Problem("cannot keep", marks[name], f"{name} is in it, and is {states.get(name, 'not installed')}")
        for name in sorted(marks.keys() - going - applied)
    ]
    if problems:
        raise Failure(*problems)
    stay = [item for item in installed if item.id in applied - going]

    def pristine(file: str) -> bytes | None:
        return originals[file] if file in originals else seen.read(file)

    changeset = engine.plan(pristine, stay)
    if changeset.problems:
        raise Failure(*changeset.problems)
    return changeset


def _not_applied(tree: Snapshot, name: str) -> Problem:
    return Problem("not applied", str(tree.tree.root), f"there is nothing of {name} to take away")
