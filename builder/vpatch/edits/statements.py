"""Replace, insert and delete statements. They stand directly in the block that scope and headers lead to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch import cst
from vpatch.edits.census import census, marked
from vpatch.marks import with_mark
from vpatch.model import Finding, Found
from vpatch.select import Source, block, lines, nearest, runs, scopes
from vpatch.syntax import same

if TYPE_CHECKING:
    from vpatch.syntax import Path, Spot
    from vpatch.workspace import Workspace

Run = list["Spot"]


def _clones(code: str, overlay: str) -> list[cst.CSTNode]:
    return [with_mark(statement.deep_clone(), overlay) for statement in block(code)]


def _paths(found: list[Run]) -> list[Path]:
    return [spot.path for run in found for spot in run]


def put_run(source: Source, run: Run, new: list[cst.CSTNode]) -> Source:
    """Put `new` in the place of a run of statements; the comments above the first stay above the first."""
    above = getattr(run[0].node, "leading_lines", ())
    first = new[0].with_changes(leading_lines=(*above, *getattr(new[0], "leading_lines", ())))
    for spot in reversed(run[1:]):
        source = source.put(spot.path)
    return source.put(run[0].path, first, *new[1:])


@dataclass(frozen=True)
class ReplaceStatements:
    """Put the statements `new` in the place of the consecutive statements `old`."""

    file: str
    scope: str
    old: str
    new: str
    within: tuple[str, ...] = ()
    count: int = 1

    def _runs(self, source: Source) -> tuple[list[Run], list[Run]]:
        owners = scopes(source, self.scope, self.within)
        old, new = ([r for o in owners for r in runs(o, block(c), exactly=True)] for c in (self.old, self.new))
        shared = {path for run in new for path in _paths([run])}
        return [run for run in old if not shared.intersection(_paths([run]))], new

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether `old` or `new` stands there."""
        source = files.source(self.file)
        old, new = self._runs(source)
        ours = [run for run in new if all(marked(source, spot.path, overlay) for spot in run)]
        return census(
            [run[0].path for run in old],
            [run[0].path for run in ours or new],
            frozenset(_paths(ours)),
            count=self.count,
            wanted=f"`{self.old.splitlines()[0]}`",
            hint=lambda: nearest(source, scopes(source, self.scope, self.within), block(self.old)),
        )

    def apply(self, files: Workspace, overlay: str) -> None:
        """Put `new` there, marked."""
        source = files.source(self.file)
        for run in reversed(self._runs(source)[0]):
            source = put_run(source, run, _clones(self.new, overlay))
        files.put(self.file, source)


@dataclass(frozen=True)
class _Beside:
    file: str
    scope: str
    anchor: str
    new: str
    within: tuple[str, ...] = ()
    count: int = 1


def _anchored(edit: _Beside, source: Source, *, after: bool) -> tuple[list[Run], list[Run]]:
    """Give the runs that `anchor` matches, and of each the statements of `new` beside it (none: not inserted yet)."""
    anchor, new = block(edit.anchor), block(edit.new)
    anchors: list[Run] = []
    inserted: list[Run] = []
    for owner in scopes(source, edit.scope, edit.within):
        here = lines(owner)
        taken: set[Path] = set()
        for run in runs(owner, anchor):
            start = run[-1].path[-1][1] + 1 if after else run[0].path[-1][1] - len(new)
            beside = here[max(start, 0) : start + len(new)] if start >= 0 else []
            done = len(beside) == len(new) and all(same(n, s.node) for n, s in zip(new, beside, strict=True))
            if taken.intersection(_paths([run])):
                continue
            anchors.append(run)
            inserted.append(beside if done else [])
            taken.update(_paths([beside]) if done else ())
    return anchors, inserted


def _state(edit: _Beside, files: Workspace, overlay: str, *, after: bool) -> Finding:
    source = files.source(edit.file)
    anchors, inserted = _anchored(edit, source, after=after)
    regions = tuple(run[0].path for run in anchors)
    if len(anchors) == edit.count and not any(inserted):
        return Finding(Found.BEFORE, regions=regions)
    if len(anchors) == edit.count and all(inserted):
        ours = frozenset(p for p in _paths(inserted) if marked(source, p, overlay))
        return Finding(Found.AFTER, marked=ours, regions=regions)
    times = f"is there {len(anchors)} times, {edit.count} expected" if anchors else "is not there"
    hint = nearest(source, scopes(source, edit.scope, edit.within), block(edit.anchor))
    return Finding(Found.LOST, f"`{edit.anchor.splitlines()[0]}` {times}{hint}")


def _apply(edit: _Beside, files: Workspace, overlay: str, *, after: bool) -> None:
    source = files.source(edit.file)
    for run in reversed(_anchored(edit, source, after=after)[0]):
        edge = run[-1] if after else run[0]
        new = _clones(edit.new, overlay)
        source = source.put(edge.path, *((edge.node, *new) if after else (*new, edge.node)))
    files.put(edit.file, source)


@dataclass(frozen=True)
class InsertAfter(_Beside):
    """Put the statements `new` right after the statements that match `anchor`, in which `...` is free."""

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether the anchor is there, and `new` after it."""
        return _state(self, files, overlay, after=True)

    def apply(self, files: Workspace, overlay: str) -> None:
        """Insert it, marked."""
        _apply(self, files, overlay, after=True)


@dataclass(frozen=True)
class InsertBefore(_Beside):
    """Put the statements `new` right before the statements that match `anchor`, in which `...` is free."""

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether the anchor is there, and `new` before it."""
        return _state(self, files, overlay, after=False)

    def apply(self, files: Workspace, overlay: str) -> None:
        """Insert it, marked."""
        _apply(self, files, overlay, after=False)
