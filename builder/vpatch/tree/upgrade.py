"""Overlays in a tree that another version of vpatch, or of their package, applied, and what replaces them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from vpatch.core.engine import Engine
from vpatch.core.marks import marks_in
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import MISFITS, Changeset, State, Verdict
from vpatch.errors import Failure, Problem

_OUTDATED = "another version of vpatch or of its package applied it; `vpatch apply` upgrades it"


class Seen(Protocol):
    """What is asked of a tree: see `vpatch.tree.apply.Snapshot`."""

    @property
    def originals(self) -> Mapping[str, bytes | None]:
        """The pristine bytes of every file that vpatch changed; None for a file that it added."""

    @property
    def unrecognized(self) -> Collection[str]:
        """The files that vpatch changed, and whose bytes are neither pristine nor known to be its own."""

    def read(self, path: str) -> bytes | None:
        """Read a file; return None if it does not exist."""


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


def upgrade_of(seen: Seen, engine: Engine, overlays: Sequence[Catalogued], before: Sequence[Verdict]) -> Upgrade | None:
    """Plan from the pristine bytes what another version of an overlay wrote, as if it were applied for the first time.

    There is no upgrade unless vpatch wrote every byte of the files that it changed, as what it keeps beside the tree
    shows, and every overlay that is in them can be applied.

    Args:
        seen: the tree.
        engine: one that has every overlay that may be in the tree.
        overlays: those to apply, besides whatever is in the tree.
        before: their verdicts on the tree.
    """
    known = {item.id: item for item in engine.overlays}
    here = marks(seen)
    others = _of_another_version(here, known, before)
    if not others or not here.keys() <= known.keys() or seen.unrecognized:
        return None
    wanted = here.keys() | {item.id for item in overlays}
    found = engine.plan(partial(pristine, seen), [known[name] for name in sorted(wanted)])
    verdicts = _excused(before, found.before, others)
    if not found.problems:
        after = {verdict.id: verdict for verdict in found.after}
        return Upgrade(others, replace(found, before=verdicts, after=tuple(after[verdict.id] for verdict in before)))
    wrong = {verdict.id for verdict in found.before if verdict.problems}
    rest = [known[name] for name in sorted(wanted - wrong)]
    if wrong & here.keys() or engine.plan(partial(pristine, seen), rest).problems:
        return None
    fitting = {*others, *(verdict.id for verdict in verdicts if verdict.state is State.PENDING)}
    return Upgrade(others, Changeset(verdicts, verdicts, {}, found.problems), tuple(sorted(fitting)))


def _of_another_version(
    here: Mapping[str, Collection[str]], known: Mapping[str, Catalogued], before: Sequence[Verdict]
) -> tuple[str, ...]:
    """Return those that do not fit although they are there, or are in other files than this version changes."""
    judged = {verdict.id: verdict.state for verdict in before if verdict.id in here}
    return tuple(
        sorted(
            name
            for name, state in judged.items()
            if state in MISFITS or not {*here[name]} <= {*known[name].overlay.files}
        )
    )


def _excused(before: Sequence[Verdict], on_pristine: Sequence[Verdict], others: Collection[str]) -> tuple[Verdict, ...]:
    """Return the verdicts without what `others` alone are to blame for."""

    def outdated(verdict: Verdict) -> Verdict:
        return replace(verdict, parts=tuple(replace(p, because=_OUTDATED, problems=()) for p in verdict.parts))

    new = {verdict.id: verdict for verdict in on_pristine}
    new |= {verdict.id: outdated(verdict) for verdict in before if verdict.id in others}
    return tuple(new[verdict.id] if verdict.state in MISFITS else verdict for verdict in before)


def marks(seen: Seen) -> Mapping[str, tuple[str, ...]]:
    """Return the ids of the overlays whose marks are in files that vpatch changed, each with these files, sorted."""
    found: dict[str, list[str]] = {}
    for file in sorted(seen.originals):
        for name in dict.fromkeys(marks_in(seen.read(file) or b"")):
            found.setdefault(name, []).append(file)
    return {name: tuple(files) for name, files in found.items()}


def not_installed(seen: Seen | None, installed: Sequence[Catalogued]) -> Mapping[str, tuple[str, ...]]:
    """Return the overlays that are applied and that no package here has, each with its files.

    None are if what vpatch keeps of the tree is unreadable, or if there is no tree: `verify` and `revert` report it.
    """
    try:
        applied = marks(seen) if seen else {}
    except Failure:
        return {}
    return {name: files for name, files in applied.items() if name not in {item.id for item in installed}}


def pristine(seen: Seen, file: str) -> bytes | None:
    """Return the bytes of a file from before vpatch."""
    originals = seen.originals
    return originals[file] if file in originals else seen.read(file)
