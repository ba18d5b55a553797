"""The differences between a recorded matrix and a new one, judged from the view of a team that pins vLLM.

A row is compared with the recorded row of its name, and a row of a new name with the newest recorded release of its
project that is not newer: "what changes for me if I bump?" A release older than all recorded ones of its project is
left out. A git revision, a wheel or a folder counts as one of the project vllm; without a version, as newer than all
releases.

Worse is what newly needs attention: a broken part, a problem of a new kind, an unreadable vLLM, a row without a row to
compare it with; and merged -> pending, since users who dropped that overlay need it again. Better is what no longer
needs attention, and what upstream merged. Rows and overlays that this run leaves out are no changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from packaging.version import Version

from vpatch.core.verdict import MISFITS, PartVerdict, State
from vpatch.errors import Problem
from vpatch.matrix.verdicts import Cell, Matrix, Row, parsed_version

PROJECT = "vllm"

_REASONS = {
    (State.PENDING, State.NOT_APPLICABLE): "what the overlay is for is not there any more",
    (State.NOT_APPLICABLE, State.PENDING): "the defect came in, and the overlay knows it",
    (State.NOT_APPLICABLE, State.MERGED): "it came in with the change in it",
    (State.MERGED, State.PENDING): "upstream took it back: the overlay is needed again",
    (State.MERGED, State.NOT_APPLICABLE): "what upstream had mended is not there any more",
}


class Urgency(StrEnum):
    """The kinds of changes, the most urgent first."""

    WORSE = "worse"
    BETTER = "better"
    OTHER = "other"
    STILL = "still"


@dataclass(frozen=True)
class Change:
    """A change of one cell, or of a whole row if `overlay` is None; the fields are those of the JSON object.

    `against` is the row of the baseline that it was compared with. A state is None without a cell.
    """

    vllm: str
    overlay: str | None
    against: str | None
    before: State | None
    after: State | None
    kind: Urgency
    because: str

    def __str__(self) -> str:
        return str(self.problem)

    def compared(self, code: Callable[[str], str] = str) -> str:
        """Describe the states before and after if they differ, and the other row; `code` formats its name."""
        states = other = ""
        if self.overlay and self.before is not self.after:
            states = f"{self.before} -> {self.after}" if self.before else str(self.after)
        if self.against and self.against != self.vllm:
            other = f"compared with {code(self.against)}"
        return ", ".join(filter(None, (states, other)))

    @property
    def problem(self) -> Problem:
        """The change as a problem."""
        where = ": ".join(filter(None, (self.vllm, self.overlay)))
        return Problem(self.kind, where, ": ".join(filter(None, (self.compared(), self.because))))


def from_objects(objects: Iterable[Mapping[str, Any]]) -> tuple[Change, ...]:
    """Parse the field "changes" of `vpatch matrix --baseline FILE --json`."""
    found = []
    for one in objects:
        change = Change(*(one[field.name] for field in fields(Change)))
        before, after = (state and State(state) for state in (change.before, change.after))
        found.append(replace(change, before=before, after=after, kind=Urgency(change.kind)))
    return tuple(found)


def changes(old: Sequence[Row], new: Matrix) -> tuple[Change, ...]:
    """Compare a matrix with recorded rows; the most urgent changes come first."""
    asked = {item.id for item in new.overlays}
    left = too_old(old, new)
    found = [change for row in new.rows if row.name not in left for change in _row_changes(old, row, asked)]
    return tuple(sorted(found, key=lambda change: list(Urgency).index(change.kind)))


def too_old(old: Sequence[Row], new: Matrix) -> list[str]:
    """Return the names of releases that are older than all recorded ones of their project, which has some."""
    oldest = dict(sorted(filter(None, map(_release, old)), reverse=True))
    releases = ((row.name, *found) for row in new.rows if (found := _release(row)))
    return [name for name, project, version in releases if project in oldest and version < oldest[project]]


def _row_changes(old: Sequence[Row], row: Row, asked: set[str]) -> Iterator[Change]:
    same = next((one for one in old if one.name == row.name), None)
    unread = same is not None and same.tree is None
    if row.tree is None:
        kind = Urgency.STILL if unread else Urgency.WORSE
        yield _of_row(row, same, kind, f"cannot be read: {_joined(row.problems)}")
        return
    if unread:
        yield _of_row(row, same, Urgency.BETTER, "it can be read again")
    before = same if same and not unread else _older(old, row)
    if before is None:
        yield _of_row(row, None, Urgency.WORSE, "there is no row in the baseline to compare it with")
    yield from _compared(before, row, asked)


def _compared(before: Row | None, row: Row, asked: set[str]) -> Iterator[Change]:
    known = {cell.verdict.id: cell for cell in before.cells} if before else {}
    complete = known.keys() <= asked  # conflicts depend on which overlays are asked for
    kind = _urgency(before=bool(before and before.problems), after=bool(row.problems))
    if kind and (complete or kind is not Urgency.BETTER):
        yield _of_row(row, before, kind, _joined(row.problems) or "overlays go together again")
    for cell in row.cells:
        was = known.get(cell.verdict.id)
        if complete or cell.urgent or not was or was.verdict.state is not State.CONFLICT:
            yield from _cell_changes(row, before, was, cell)


def _cell_changes(row: Row, before: Row | None, was: Cell | None, cell: Cell) -> Iterator[Change]:
    name, after = cell.verdict.id, cell.verdict.state
    if judged := _judged(was, cell):
        against, state = (before.name, was.verdict.state) if before and was else (None, None)
        yield Change(row.name, name, against, state, after, *judged)
    elif before and not was:
        yield Change(
            row.name, name, None, None, after, Urgency.OTHER, f"new since the baseline: {cell.verdict.because}"
        )


def _of_row(row: Row, before: Row | None, kind: Urgency, because: str) -> Change:
    return Change(row.name, None, before.name if before else None, None, None, kind, because)


def _urgency(*, before: bool, after: bool) -> Urgency | None:
    """Compare whether a cell or row needed attention; None if it did not before and does not now."""
    return {(False, True): Urgency.WORSE, (True, False): Urgency.BETTER, (True, True): Urgency.STILL}.get(
        (before, after)
    )


def _judged(was: Cell | None, cell: Cell) -> tuple[Urgency, str] | None:
    """Judge a cell against that of the baseline; None if there is nothing to report."""
    after, kind = cell.verdict.state, _urgency(before=bool(was and was.urgent), after=cell.urgent)
    parts, beyond = _new_in(cell, was)
    if parts or beyond:
        return Urgency.WORSE, _described(cell, parts, beyond)
    if was is None:
        return None
    same = was.verdict.state is after
    if kind is Urgency.STILL:
        as_before = f"{after} as" if same else "as bad as"
        return kind, f"{as_before} in the baseline: {_described(cell, *_new_in(cell, None))}"
    if kind is Urgency.BETTER and (same or after is not State.MERGED):
        return kind, f"nobody need look any more: {cell.verdict.because}"
    return _changed(was, cell)


def _new_in(cell: Cell, known: Cell | None) -> tuple[list[PartVerdict], list[Problem]]:
    """Return the broken parts and the problems of a cell that `known` does not have.

    Parts are compared by their states, problems by their codes, or by what they are if a baseline has no codes. It does
    not record which of its problems a verdict has itself, so none of their kinds counts as new.
    """
    states = {(part.name, part.state) for part in known.verdict.parts} if known else set()
    kinds = {kind for problem in known.problems for kind in (problem.code, problem.what)} if known else set()
    parts = [p for p in cell.verdict.parts if p.state in MISFITS and (p.name, p.state) not in states]
    return parts, [p for p in cell.beyond if not {p.code or p.what, p.what} & kinds]


def _described(cell: Cell, parts: Sequence[PartVerdict], beyond: Sequence[Problem]) -> str:
    because = replace(cell.verdict, parts=tuple(parts)).because if parts else ""
    return "; ".join(filter(None, (because, _joined(beyond))))


def _changed(was: Cell, cell: Cell) -> tuple[Urgency, str] | None:
    before, after = was.verdict.state, cell.verdict.state
    if before is after:
        old, new = (
            {part.name: f"{part.state} as in {part.shape}" if part.shape else part.state for part in one.verdict.parts}
            for one in (was, cell)
        )
        names = (name for name in {**old, **new} if old.get(name) != new.get(name))
        found = [f"{name}: {old.get(name, 'no such part')} -> {new.get(name, 'no such part')}" for name in names]
        return (Urgency.OTHER, "; ".join(found)) if found else None
    reason = _REASONS.get((before, after), "")
    kind = Urgency.WORSE if (before, after) == (State.MERGED, State.PENDING) else Urgency.OTHER
    if after is State.MERGED:
        kind, reason = Urgency.BETTER, reason or "now merged upstream: this overlay can go"
    return kind, ": ".join(filter(None, (reason, cell.verdict.because)))


def _joined(problems: Sequence[Problem]) -> str:
    return "; ".join(map(str, problems))


def _release(row: Row) -> tuple[str, Version] | None:
    """Parse the project and the version of a row that is a release on an index."""
    project, _, text = row.name.rpartition(" ")
    version = parsed_version(text)
    if version is None or str(version) != text or not re.fullmatch(r"[\w.-]*", project):
        return None
    return project or PROJECT, version


def _older(old: Sequence[Row], row: Row) -> Row | None:
    """Find the newest recorded release of the row's project that could be read and is not newer."""
    project, version = _release(row) or (PROJECT, parsed_version(row.tree.version if row.tree else None))
    known = [(release[1], one) for one in old if one.tree and (release := _release(one)) and release[0] == project]
    fitting = [pair for pair in known if version is None or pair[0] <= version]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None
