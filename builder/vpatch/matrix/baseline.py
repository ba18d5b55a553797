"""What has become of a recorded matrix: the rules by which a team that pins vLLM would have it judged.

A row is compared with the recorded one of its name. One that is new, such as a release that has just come out, is
compared with the newest recorded release of its project that is no newer than itself: "what changes for me if I bump?"
A git revision, a wheel or a folder is taken for one of the project vllm; without a version, for newer than all.

Worse is whatever wants a person who was not wanted before:

- a cell with a part that is drifted or in conflict, and was not so, or was not so in that way;
- a problem with an overlay where there was none of that kind: applied in memory, it does not do what it promises;
- merged -> pending: upstream took it back, and whoever dropped the overlay needs it again;
- a vLLM that cannot be read, or in which overlays do not go together any more;
- a row that has nothing to be compared with, as nobody knows; whatever is wrong in it, or with a new overlay, is told.

Better is that nobody is wanted any more, and what upstream has merged: that overlay can go. Other changes are told
and no more: an overlay is new, the defect came in and the overlay knows it, it is gone, the code has another of the
known shapes. What was as bad in the baseline as it is now is no change: it is told as such, and whoever recorded it
has seen it. Rows and overlays that were not asked for this time are none either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from packaging.version import Version

from vpatch.core.verdict import State
from vpatch.errors import Problem
from vpatch.matrix.difference import Change, Kind
from vpatch.matrix.verdicts import BROKEN, Cell, Matrix, Row, parsed_version

PROJECT = "vllm"


def changes(old: Sequence[Row], new: Matrix) -> tuple[Change, ...]:
    """Compare a matrix with recorded rows; the most urgent changes first.

    Args:
        old: as `vpatch.matrix.as_json.read_rows` gives them.
        new: what is so now.
    """
    found = [change for row in new.rows for change in _of_row(old, row, {item.id for item in new.overlays})]
    return tuple(sorted(found, key=lambda change: list(Kind).index(change.kind)))


def _of_row(old: Sequence[Row], row: Row, asked: set[str]) -> Iterator[Change]:
    same = next((one for one in old if one.name == row.name), None)
    if row.tree is None:
        kind = Kind.STILL if same and same.tree is None else Kind.WORSE
        reason = f"cannot be read: {_told(row.problems)}"
        yield Change(row.name, "", same.name if same else "", None, None, kind, reason)
        return
    if same and same.tree is None:
        yield Change(row.name, "", same.name, None, None, Kind.BETTER, "it can be read again")
    before = same if same and same.tree else _older(old, row)
    name = before.name if before else ""
    if before is None:
        yield Change(row.name, "", "", None, None, Kind.WORSE, "there is no row in the baseline to compare it with")
    known = {cell.verdict.id: cell for cell in before.cells} if before else {}
    whole = known.keys() <= asked  # what overlays are to each other depends on which are asked for
    kind_of = _wanted(before=bool(before and before.problems), after=bool(row.problems))
    if kind_of and (whole or kind_of is not Kind.BETTER):
        yield Change(row.name, "", name, None, None, kind_of, _told(row.problems) or "overlays go together again")
    for cell in row.cells:
        was = known.get(cell.verdict.id)
        if was and was.verdict.state is State.CONFLICT and not whole and not cell.urgent:
            continue
        if judged := _judged(was, cell):
            state = was.verdict.state if was else None
            yield Change(row.name, cell.verdict.id, name if was else "", state, cell.verdict.state, *judged)
        elif before and cell.verdict.id not in known:
            reason = f"new since the baseline: {cell.verdict.because}"
            yield Change(row.name, cell.verdict.id, "", None, cell.verdict.state, Kind.OTHER, reason)


def _wanted(*, before: bool, after: bool) -> Kind | None:
    """Say what it is that a person was and is wanted, None where neither."""
    return {(False, True): Kind.WORSE, (True, False): Kind.BETTER, (True, True): Kind.STILL}.get((before, after))


def _judged(was: Cell | None, cell: Cell) -> tuple[Kind, str] | None:
    kind, after = _wanted(before=bool(was and was.urgent), after=cell.urgent), cell.verdict.state
    if further := _bad(cell, was):
        return Kind.WORSE, further
    if was is None:
        return None
    same = was.verdict.state is after
    if kind is Kind.STILL:
        return kind, f"{f'{after} as' if same else 'as bad as'} in the baseline: {_bad(cell, None)}"
    if kind is Kind.BETTER and (same or after is not State.MERGED):
        return kind, f"nobody need look any more: {cell.verdict.because}"
    return _changed(was, cell)


def _bad(cell: Cell, known: Cell | None) -> str:
    """Say what a person must look at, "" where that was known before: parts, each by its state, and kinds of problems.

    Which of its problems a recorded verdict has itself is not recorded: none of their kinds is new.
    """
    states = {(part.name, part.state) for part in known.verdict.parts} if known else set()
    kinds = {problem.what for problem in known.problems} if known else set()
    parts = [p for p in cell.verdict.parts if p.state in BROKEN and (p.name, p.state) not in states]
    beyond = [problem for problem in cell.beyond if problem.what not in kinds]
    because = replace(cell.verdict, parts=tuple(parts)).because if parts else ""
    return "; ".join(filter(None, (because, _told(beyond))))


_SAID = {
    (State.PENDING, State.NOT_APPLICABLE): "what the overlay is for is not there any more",
    (State.NOT_APPLICABLE, State.PENDING): "the defect came in, and the overlay knows it",
    (State.NOT_APPLICABLE, State.MERGED): "it came in with the change in it",
    (State.MERGED, State.PENDING): "upstream took it back: the overlay is needed again",
    (State.MERGED, State.NOT_APPLICABLE): "what upstream had mended is not there any more",
}


def _changed(was: Cell, cell: Cell) -> tuple[Kind, str] | None:
    """Judge a cell that no person must look at."""
    before, after = was.verdict.state, cell.verdict.state
    reason = cell.verdict.because
    if before is after:
        parts = {part.name: (part.state, part.shape) for part in was.verdict.parts}
        now = {part.name: (part.state, part.shape) for part in cell.verdict.parts}
        told = [
            f"{name}: {_form(parts.get(name))} -> {_form(now.get(name))}"
            for name in {**parts, **now}
            if parts.get(name) != now.get(name)
        ]
        return (Kind.OTHER, "; ".join(told)) if told else None
    if after is State.MERGED:
        said = _SAID.get((before, after), "now merged upstream: this overlay can go")
        return Kind.BETTER, f"{said}: {reason}"
    kind = Kind.WORSE if (before, after) == (State.MERGED, State.PENDING) else Kind.OTHER
    return kind, ": ".join(filter(None, (_SAID.get((before, after)), reason)))


def _form(part: tuple[State, str | None] | None) -> str:
    if part is None:
        return "no such part"
    state, shape = part
    return f"{state} as in {shape}" if shape else str(state)


def _told(problems: Sequence[Problem]) -> str:
    return "; ".join(map(str, problems))


def _release(row: Row) -> tuple[str, Version] | None:
    """Give the project and the version of a row that is a release on an index."""
    project, _, said = row.name.rpartition(" ")
    version = parsed_version(said)
    if version is None or str(version) != said or not re.fullmatch(r"[\w.-]*", project):
        return None
    return project or PROJECT, version


def _older(old: Sequence[Row], row: Row) -> Row | None:
    """Give the newest release of the same project that is recorded, could be read and is no newer."""
    project, version = _release(row) or (PROJECT, parsed_version(row.tree.version if row.tree else None))
    known = [(release[1], one) for one in old if one.tree and (release := _release(one)) and release[0] == project]
    fitting = [pair for pair in known if version is None or pair[0] <= version]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None
