"""Overlays in a tree that another version of vpatch, or of their package, applied, and what replaces them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from vpatch.core.engine import Engine
from vpatch.core.marks import marks_in
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import MISFITS, Changeset, State, Verdict
from vpatch.errors import Problem

if TYPE_CHECKING:
    from vpatch.tree.apply import Snapshot

_OUTDATED = "another version of vpatch or of its package applied it; `vpatch apply` upgrades it"


@dataclass(frozen=True)
class Upgrade:
    """What replaces overlays that another version of their package applied.

    Attributes:
        overlays: their ids.
        changeset: computed from the pristine bytes. The verdicts `before` are on the tree as it is; of these overlays,
            they have no problems. If others do not fit, it has their problems, and changes nothing.
        fitting: if others do not fit, the ids of those that can be applied or upgraded without them.
    """

    overlays: tuple[str, ...]
    changeset: Changeset
    fitting: tuple[str, ...] = ()

    @property
    def problems(self) -> list[Problem]:
        """That they wait to be upgraded."""
        return [Problem("outdated", name, _OUTDATED) for name in self.overlays]


def upgrade_of(
    seen: Snapshot, engine: Engine, overlays: Sequence[Catalogued], before: Sequence[Verdict]
) -> Upgrade | None:
    """Plan from the pristine bytes what another version of an overlay wrote, as if it were applied for the first time.

    It wrote an overlay that does not fit although its marks are there, or that has marks in other files than this
    version. There is no upgrade unless vpatch wrote every byte of the files that it changed, as what it keeps beside
    the tree shows, and every overlay that is in them can be applied.

    Args:
        seen: the tree.
        engine: one that has every overlay that may be in the tree.
        overlays: those to apply, besides whatever is in the tree.
        before: their verdicts on the tree.
    """
    known = {item.id: item for item in engine.overlays}
    here = marks(seen)
    misfits = {verdict.id for verdict in before if verdict.state in MISFITS}
    of_another = {
        name
        for name, files in here.items()
        if name in misfits or (name in known and not {*files} <= {*known[name].overlay.files})
    }
    if not of_another or not here.keys() <= known.keys() or seen.unrecognized:
        return None
    wanted = here.keys() | {item.id for item in overlays}
    found = engine.plan(partial(pristine, seen), [known[name] for name in sorted(wanted)])
    on_pristine = {verdict.id: verdict for verdict in found.before}
    new = on_pristine | {verdict.id: _outdated(verdict) for verdict in before if verdict.id in of_another}
    told = tuple(new[verdict.id] if verdict.id in misfits else verdict for verdict in before)
    ids = tuple(sorted(of_another))
    if not found.problems:
        after = {verdict.id: verdict for verdict in found.after}
        return Upgrade(ids, replace(found, before=told, after=tuple(after[verdict.id] for verdict in before)))
    wrong = {name for name, verdict in on_pristine.items() if verdict.problems}
    rest = [known[name] for name in sorted(wanted - wrong)]
    if wrong & here.keys() or engine.plan(partial(pristine, seen), rest).problems:
        return None
    pending = {verdict.id for verdict in told if verdict.state is State.PENDING}
    return Upgrade(ids, Changeset(told, told, {}, found.problems), tuple(sorted(of_another | pending)))


def _outdated(verdict: Verdict) -> Verdict:
    parts = (replace(part, because=_OUTDATED, problems=()) for part in verdict.parts)
    return replace(verdict, parts=tuple(parts))


def marks(seen: Snapshot) -> Mapping[str, tuple[str, ...]]:
    """Return the ids of the overlays whose marks are in files that vpatch changed, each with these files, sorted."""
    found: dict[str, list[str]] = {}
    for file in sorted(seen.originals):
        for name in dict.fromkeys(marks_in(seen.read(file) or b"")):
            found.setdefault(name, []).append(file)
    return {name: tuple(files) for name, files in found.items()}


def pristine(seen: Snapshot, file: str) -> bytes | None:
    """Return the bytes of a file from before vpatch."""
    originals = seen.originals
    return originals[file] if file in originals else seen.read(file)
