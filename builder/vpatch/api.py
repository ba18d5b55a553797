"""Apply and revert: what the engine computes, brought to where the files are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from vpatch.core.engine import Engine
from vpatch.core.marks import marks_in
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import Changeset, State
from vpatch.errors import Failure, Problem
from vpatch.tree.store import Store


def apply(
    store: Store,
    overlays: Sequence[Catalogued],
    engine: Engine | None = None,
) -> tuple[Changeset, tuple[str, ...]]:
    """Apply overlays to a tree; return the changeset and the paths that were written.

    `engine` is one that has these overlays, to share what it has parsed. The plan is made before any lock is taken, so
    that a tree that is as asked may be read-only; under the lock it holds
    only if the files are still what they were.

    Raises:
        Failure: the tree cannot be written, or is not what it was.
    """
    engine = engine or Engine(overlays)
    changeset, seen = _planned(store, overlays, engine)
    if changeset.problems:
        return changeset, ()
    desired = _desired(store, changeset.files)
    if store.settled(desired, _note(desired)):
        return changeset, ()
    with store.lock():
        if any(store.site.read(file) != data for file, data in seen.items()):
            changeset, _ = _planned(store, overlays, engine)
            if changeset.problems:
                return changeset, ()
            desired = _desired(store, changeset.files)
        return changeset, store.settle(desired, _note(desired), on_edits=True)


def _planned(
    store: Store, overlays: Sequence[Catalogued], engine: Engine
) -> tuple[Changeset, Mapping[str, bytes | None]]:
    """Plan; give the files, too, that the plan rests on."""
    seen: dict[str, bytes | None] = {}

    def read(file: str) -> bytes | None:
        seen[file] = store.site.read(file)
        return seen[file]

    return engine.plan(read, overlays), seen


def revert(
    store: Store,
    installed: Sequence[Catalogued],
    overlays: Collection[Catalogued] | None,
    engine: Engine | None = None,
) -> tuple[str, ...]:
    """Revert `overlays`, all if it is None; return the paths that were put back.

    What stays is computed anew from the pristine bytes, so that nothing is left of what goes.

    Raises:
        Failure: somebody edited a file after vpatch, an overlay to take away is not applied, one that stays cannot be
            computed, or marks remain of overlays that are not installed.
    """
    if not store.settled({}, []):
        with store.lock():
            if overlays is None:
                changed = store.settle({}, [], on_edits=False)
            else:
                changed = _without(store, installed, overlays, engine or Engine(installed))
    else:
        changed = ()
    gone = installed if overlays is None else overlays
    left = {
        (file, item.id) for item in gone for file in edited(item) if item.id in marks_in(store.site.read(file) or b"")
    }
    cause = "vpatch keeps no original of it: reinstall vLLM, or revert the commit that has it"
    problems = [Problem("cannot revert", file, f"{name} is applied, and {cause}") for file, name in sorted(left)]
    if overlays is None:
        problems += unknown_marks(store.site.read, installed)
    if problems:
        raise Failure(*problems)
    if overlays is not None and not changed:
        raise Failure(*(_not_applied(store, item.id) for item in overlays))
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
    """Give the files that an overlay changes or adds."""
    return {file for part in item.overlay.parts for file in part.files}


def _without(
    store: Store,
    installed: Sequence[Catalogued],
    overlays: Collection[Catalogued],
    engine: Engine,
) -> tuple[str, ...]:
    originals, going = store.originals(), {item.id for item in overlays}
    marks = {name: file for file in sorted(originals) for name in marks_in(store.site.read(file) or b"")}
    # One by one: that some are in conflict does not matter to what is applied already.
    here = [item for item in installed if item.id in marks]
    states = {item.id: engine.status(store.site.read, [item])[0].state for item in here}
    applied = {name for name, state in states.items() if state is State.APPLIED}
    if missing := sorted(going - marks.keys()):
        raise Failure(*(_not_applied(store, name) for name in missing))
    if unknown := sorted(marks.keys() - going - applied):
        raise Failure(
            *(
                Problem("cannot keep", marks[name], f"{name} is in it, and is {states.get(name, 'not installed')}")
                for name in unknown
            )
        )
    stay = [item for item in installed if item.id in applied - going]

    def pristine(file: str) -> bytes | None:
        return originals[file] if file in originals else store.site.read(file)

    changeset = engine.plan(pristine, stay)
    if changeset.problems:
        raise Failure(*changeset.problems)
    return store.settle(changeset.files, _note(changeset.files), on_edits=False)


def _desired(store: Store, changes: Mapping[str, bytes]) -> dict[str, bytes]:
    """Add what earlier runs changed to what this one does."""
    present = {file: (store.site.read(file), original) for file, original in store.originals().items()}
    return {f: now for f, (now, original) in present.items() if now is not None and now != original} | dict(changes)


def _not_applied(store: Store, name: str) -> Problem:
    return Problem("not applied", str(store.site.root), f"there is nothing of {name} to take away")


def _note(desired: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """Give what is kept for people: which overlays are in which files."""
    marks = {file: set(marks_in(data)) for file, data in desired.items()}
    overlays = sorted(set().union(*marks.values()))
    return [{"id": name, "files": sorted(f for f, names in marks.items() if name in names)} for name in overlays]
