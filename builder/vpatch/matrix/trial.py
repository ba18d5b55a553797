"""Overlays tried on one vLLM in memory: applied, compiled, applied again, reverted, as `apply` and `revert` do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from vpatch.core.engine import Engine, Read
from vpatch.core.marks import marks_in
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import Changeset, PartVerdict, State, Verdict
from vpatch.errors import Failure, Problem
from vpatch.matrix.verdicts import Cell
from vpatch.tree.apply import Writes, apply, edited, revert
from vpatch.tree.verify import compiles


@dataclass
class Memory:
    """A vLLM whose changed files are kept in memory; its tree and its snapshot in one."""

    pristine: Read
    root: Path = Path("memory")
    version: str | None = None
    now: dict[str, bytes | None] = field(default_factory=dict)
    kept: dict[str, bytes | None] = field(default_factory=dict)

    @property
    def originals(self) -> Mapping[str, bytes | None]:
        """The bytes of every file before its first change."""
        return self.kept

    @property
    def tree(self) -> Memory:
        """The tree: itself."""
        return self

    def snapshot(self) -> Memory:
        """Return itself: no other program changes it."""
        return self

    def refresh(self) -> bool:
        """Return that nothing differs."""
        return False

    def lock(self) -> AbstractContextManager[None]:
        """Lock nothing."""
        return nullcontext()

    def read(self, path: str) -> bytes | None:
        """Return a file as it is now."""
        return self.now[path] if path in self.now else self.pristine(path)

    def decide(self, desired: Mapping[str, bytes], note: object, *, on_edits: bool) -> Writes:
        """Compare the files with `desired`."""
        new = {**self.kept, **desired}
        changed = tuple(sorted(file for file, data in new.items() if self.read(file) != data))

        def carry_out() -> None:
            for file in desired:
                self.kept.setdefault(file, self.read(file))
            self.now.update(new)

        return Writes(changed, bool(changed), carry_out)


@dataclass(frozen=True)
class Together:
    """What is so only of several overlays together: the verdicts on those in conflict, by id, and other problems."""

    clashes: Mapping[str, Verdict]
    problems: tuple[Problem, ...]


def try_one(read: Read, item: Catalogued, engine: Engine) -> Cell:
    """Say what a vLLM is to one overlay, and whether the overlay does there what it promises.

    Args:
        read: gives the bytes of a file of the pristine vLLM.
        item: the overlay.
        engine: one that has this overlay.
    """
    try:
        changeset, problems = _tried(read, [item], engine)
        return Cell(changeset.before[0], problems)
    except (Failure, RuntimeError) as error:
        told = error.problems if isinstance(error, Failure) else (Problem("overlay failed", item.id, str(error)),)
    try:
        return Cell(engine.status(read, [item])[0], told)
    except Failure:  # it cannot even be asked
        return Cell(_unknown(item, told[0]), told)


def try_together(read: Read, overlays: Sequence[Catalogued], engine: Engine) -> Together:
    """Say which overlays want the same code when they are selected together, and what else does not hold then.

    What is wrong with one of them alone is left to `try_one`; the others are tried without it. Arguments are its.
    """
    try:
        changeset, problems = _tried(read, overlays, engine)
        clashes = {v.id: v for v in changeset.before if v.state is State.CONFLICT}
    except (Failure, RuntimeError) as error:
        problems = (Problem("do not go together", ", ".join(item.id for item in overlays), str(error)),)
        clashes = {}
    if not problems:
        return Together({}, ())
    alone = {item.id for item in overlays if try_one(read, item, engine).problems}
    rest = [item for item in overlays if item.id not in alone | clashes.keys()]
    if len(rest) == len(overlays):
        return Together({}, problems)
    others = try_together(read, rest, engine)
    return Together({**clashes, **others.clashes}, others.problems)


def _tried(read: Read, overlays: Sequence[Catalogued], engine: Engine) -> tuple[Changeset, tuple[Problem, ...]]:
    names = ", ".join(item.id for item in overlays)
    store = Memory(read)
    changeset, changed = apply(store, overlays, engine)
    if not changed:
        return changeset, changeset.problems
    problems = [problem for file in changed for problem in compiles(file, store.read(file) or b"")]
    again, rewritten = apply(store, overlays, engine)
    if rewritten:
        problems.append(Problem("not idempotent", names, f"the second run writes {', '.join(rewritten)}"))
    problems.extend(again.problems)
    marks = (marks_in(read(file) or b"") for item in overlays for file in edited(item))
    if not any(marks):  # else the originals are elsewhere
        problems.extend(_reverted(store, changeset, overlays, engine))
    return changeset, (*changeset.problems, *problems)


def _reverted(
    store: Memory,
    changeset: Changeset,
    overlays: Sequence[Catalogued],
    engine: Engine,
) -> list[Problem]:
    """Take one overlay away while the others stay, and then all of them."""
    applied = {verdict.id for verdict in changeset.after if verdict.state is State.APPLIED}
    try:
        revert(store, overlays, [next(item for item in overlays if item.id in applied)], engine)
        revert(store, overlays, None)
    except Failure as failure:
        return list(failure.problems)
    changed = [file for file in changeset.files if store.read(file) != store.pristine(file)]
    return [Problem("not reversible", file, "it stays changed") for file in changed]


def _unknown(item: Catalogued, problem: Problem) -> Verdict:
    """Give the verdict on a vLLM that an overlay stumbles over."""
    parts = (
        PartVerdict(part.name, State.DRIFTED, str(problem), part.files, problems=(problem,))
        for part in item.overlay.parts
    )
    return Verdict(item.id, tuple(parts))
