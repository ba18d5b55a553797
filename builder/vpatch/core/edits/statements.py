"""Replace, insert and delete statements. They stand directly in the block that scope and headers lead to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vpatch.core.changes import AFTER, BEFORE, Splice
from vpatch.core.edits import CodeEdit, classify, marked, occurs
from vpatch.core.parse import Lost, Source, first_line
from vpatch.core.select import block, headline, nearest, runs
from vpatch.core.syntax import Path, Spot, same
from vpatch.core.verdict import EditFinding, Found, Landed

if TYPE_CHECKING:
    from vpatch.core.changes import Change

Run = list[Spot]


def _paths(*found: Run) -> set[Path]:
    return {spot.path for run in found for spot in run}


def _disjoint(found: list[Run], others: list[Run]) -> list[Run]:
    taken = _paths(*others)
    return [run for run in found if not taken & _paths(run)]


def _marked_lines(source: Source, overlay: str, paths: set[Path]) -> frozenset[int]:
    return frozenset[int]().union(*(source.mark_of(path, overlay) for path in paths))


def _spliced(owners: list[Spot], run: Run, new: str, overlay: str) -> Splice:
    """Replace a run of statements."""
    owner = next(one for one in owners if run[0].path[:-1] == one.path and run[0].path[-1][0] == one.block)
    first = run[0].path[-1][1]
    return Splice(owner, first, first + len(run), new, overlay)


@dataclass(frozen=True)
class ReplaceStatements(CodeEdit):
    """Replace the consecutive statements `old` by `new`. One may contain the other."""

    old: str
    new: str

    def _runs(self, source: Source, overlay: str) -> tuple[list[Run], list[Run], list[Run]]:
        """Return the runs that are `old`, the runs that are `new`, and which of the latter are marked."""
        owners = self._owners(source)
        old, new = (
            [run for owner in owners for run in runs(source, owner, block(code), exactly=True)]
            for code in (self.old, self.new)
        )
        ours = [run for run in new if all(marked(source, path, overlay) for path in _paths(run))]
        old = _disjoint(old, ours)
        small, big = block(self.old), block(self.new)
        wraps = any(
            all(map(same, small, big[start : start + len(small)])) for start in range(len(big) - len(small) + 1)
        )
        return (_disjoint(old, new), new, ours) if wraps else (old, _disjoint(new, old), ours)

    def _find(self, source: Source, overlay: str) -> EditFinding:
        old, new, ours = self._runs(source, overlay)
        return classify(
            [_paths(run) for run in old],
            [_paths(run) for run in ours or new],
            _marked_lines(source, overlay, _paths(*ours)),
            landed=lambda path: Landed(path, uses=self.uses),
            count=self.count,
            wanted=f"`{headline(self.old)}`",
            hint=nearest(source, self._owners(source), self.old),
        )

    def _changes(self, source: Source, overlay: str) -> Iterator[Change]:
        owners = self._owners(source)
        for run in self._runs(source, overlay)[0]:
            yield _spliced(owners, run, self.new, overlay)


@dataclass(frozen=True)
class _Insert(CodeEdit):
    anchor: str
    new: str

    _after: ClassVar[bool]

    def _anchored(self, source: Source) -> tuple[list[tuple[Spot, Run]], list[Run]]:
        """Return the runs that `anchor` matches, with their owners, and for each the copy of `new` beside it, if any.

        `new` may contain `anchor`: matches inside an inserted copy do not count.
        """
        anchor, new = block(self.anchor), block(self.new)
        anchors: list[tuple[Spot, Run]] = []
        inserted: list[Run] = []
        for owner in self._owners(source):
            here = source.block(owner)
            taken: set[Path] = set()
            found = runs(source, owner, anchor)
            for run in found if self._after else reversed(found):
                start = run[-1].path[-1][1] + 1 if self._after else run[0].path[-1][1] - len(new)
                beside = here[max(start, 0) : start + len(new)] if start >= 0 else []
                done = len(beside) == len(new) and all(same(n, s.node) for n, s in zip(new, beside, strict=True))
                if not taken & _paths(run):
                    anchors.append((owner, run))
                    inserted.append(beside if done else [])
                    taken |= _paths(*inserted[-1:])
        return anchors, inserted

    def _find(self, source: Source, overlay: str) -> EditFinding:
        anchors, inserted = self._anchored(source)
        done = sum(map(bool, inserted))
        if len(anchors) != self.count or done not in {0, self.count}:
            some = f", the new code beside it {done} times" if done else ""
            hint = nearest(source, self._owners(source), self.anchor)
            raise Lost(f"`{headline(self.anchor)}` {occurs(len(anchors), self.count)}{some}", hint)
        regions = tuple(sorted(_paths(*(run for _, run in anchors), *inserted)))
        landed = tuple(Landed(spot.path, uses=self.uses) for run in inserted for spot in run)
        found = Found.AFTER if done else Found.BEFORE
        ours = _marked_lines(source, overlay, _paths(*inserted))
        return EditFinding(found, marked=ours, regions=regions, landed=landed)

    def _changes(self, source: Source, overlay: str) -> Iterator[Change]:
        for owner, run in self._anchored(source)[0]:
            place = run[-1].path[-1][1] + 1 if self._after else run[0].path[-1][1]
            yield Splice(owner, place, place, self.new, overlay, rank=AFTER if self._after else BEFORE)


@dataclass(frozen=True)
class InsertAfter(_Insert):
    """Insert the statements `new` right after the statements that match `anchor`, in which `...` is free."""

    _after = True


@dataclass(frozen=True)
class InsertBefore(_Insert):
    """Insert the statements `new` right before the statements that match `anchor`, in which `...` is free."""

    _after = False


def _traces(source: Source, owner: Spot, overlay: str) -> Iterator[int]:
    """Yield the lines with marks that deletions left in a block: comments, or a `pass` that fills it."""
    here = source.block(owner)
    if not here:
        return
    inner = [range(first_line(spot.node), source.extent(spot.node) + 1) for spot in here]
    for line, overlays in source.traces.items():
        below = source.opening(owner) if owner.path else 0
        if below < line < inner[-1].stop and overlay in overlays and not any(line in one for one in inner):
            yield line
    for spot in here:
        if isinstance(spot.node, ast.Pass):
            yield from source.mark_of(spot.path, overlay)


@dataclass(frozen=True)
class DeleteStatements(CodeEdit):
    """Delete the consecutive statements `old` and put the mark in their place. The comments above them stay.

    Without the statements and without a mark, upstream may have deleted or merely changed them. Only the part's
    `merged` predicate knows, so a part with deletions needs one.
    """

    old: str

    def _runs(self, source: Source) -> list[Run]:
        return [run for owner in self._owners(source) for run in runs(source, owner, block(self.old), exactly=True)]

    def _find(self, source: Source, overlay: str) -> EditFinding:
        found, owners = self._runs(source), self._owners(source)
        if len(found) == self.count:
            return EditFinding(Found.BEFORE, regions=tuple(sorted(_paths(*found))))
        traces = {owner: frozenset(_traces(source, owner, overlay)) for owner in owners}
        ours = frozenset[int]().union(*traces.values())
        if ours and not found:
            landed = [
                Landed(owner.path, reads=frozenset(), uses=self.uses)
                for owner, lines in traces.items()
                if lines and owner.path
            ]
            return EditFinding(Found.AFTER, marked=ours, landed=tuple(landed))
        raise Lost(f"`{headline(self.old)}` {occurs(len(found), self.count)}", nearest(source, owners, self.old))

    def _changes(self, source: Source, overlay: str) -> Iterator[Change]:
        owners = self._owners(source)
        for run in self._runs(source):
            yield _spliced(owners, run, "", overlay)
