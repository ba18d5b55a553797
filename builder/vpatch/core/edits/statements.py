"""Replace, insert and delete statements. They stand directly in the block that scope and headers lead to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch.core import cst
from vpatch.core.edits.census import census, marked
from vpatch.core.marks import mark, marks_on, with_mark
from vpatch.core.parse import Lost, Source
from vpatch.core.select import block, headline, lines, nearest, runs, scopes
from vpatch.core.syntax import Path, Spot, along, same
from vpatch.core.verdict import Finding, Found, Landed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vpatch.core.overlay import Reach
    from vpatch.core.workspace import Workspace

Run = list[Spot]


def _clones(code: str, overlay: str) -> list[cst.CSTNode]:
    return [with_mark(statement.deep_clone(), overlay) for statement in block(code)]


def _paths(*found: Run) -> set[Path]:
    return {spot.path for run in found for spot in run}


def _apart(found: list[Run], others: list[Run]) -> list[Run]:
    """Give the runs that share no statement with the others."""
    taken = _paths(*others)
    return [run for run in found if not taken & _paths(run)]


def put_run(source: Source, run: Run, new: list[cst.CSTNode]) -> Source:
    """Put `new` in the place of a run of statements; the comments above the first stay above the first."""
    above = getattr(run[0].node, "leading_lines", ())
    first = new[0].with_changes(leading_lines=(*above, *getattr(new[0], "leading_lines", ())))
    for spot in reversed(run[1:]):
        source = source.put(spot.path)
    return source.put(run[0].path, first, *new[1:])


@dataclass(frozen=True)
class ReplaceStatements:
    """Put the statements `new` in the place of the consecutive statements `old`.

    `uses` are the attributes, written `self.name`, that `new` relies on.
    """

    file: str
    scope: str
    old: str
    new: str
    within: tuple[str, ...] = ()
    count: int = 1
    uses: tuple[str, ...] = ()

    @property
    def reach(self) -> Reach:
        """The scope."""
        return ((self.file, self.scope),)

    def _runs(self, source: Source, overlay: str) -> tuple[list[Run], list[Run], list[Run]]:
        """Give where `old` stands, where `new` does, and which of these is marked. One may contain the other."""
        owners = scopes(source, self.scope, self.within)
        old, new = ([r for o in owners for r in runs(o, block(c), exactly=True)] for c in (self.old, self.new))
        ours = [run for run in new if all(marked(source, path, overlay) for path in _paths(run))]
        old = _apart(old, ours)
        small, big = block(self.old), block(self.new)
        wraps = any(same(small, big[start : start + len(small)]) for start in range(len(big) - len(small) + 1))
        return (_apart(old, new), new, ours) if wraps else (old, _apart(new, old), ours)

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether `old` or `new` stands there."""
        source = files.source(self.file)
        old, new, ours = self._runs(source, overlay)
        return census(
            [_paths(run) for run in old],
            [_paths(run) for run in ours or new],
            frozenset(_paths(*ours)),
            landed=lambda path: Landed(path, uses=self.uses),
            count=self.count,
            wanted=f"`{headline(self.old)}`",
            hint=nearest(source, scopes(source, self.scope, self.within), block(self.old)),
        )

    def apply(self, files: Workspace, overlay: str) -> None:
        """Put `new` there, marked."""
        source = files.source(self.file)
        for run in reversed(self._runs(source, overlay)[0]):
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
    uses: tuple[str, ...] = ()

    @property
    def reach(self) -> Reach:
        """The scope."""
        return ((self.file, self.scope),)


def _anchored(edit: _Beside, source: Source, *, after: bool) -> tuple[list[Run], list[Run]]:
    """Give the runs that `anchor` matches, and of each the statements of `new` beside it (none: not inserted yet).

    `new` may contain `anchor`: what matches in an insertion is not looked at.
    """
    anchor, new = block(edit.anchor), block(edit.new)
    anchors: list[Run] = []
    inserted: list[Run] = []
    for owner in scopes(source, edit.scope, edit.within):
        here = lines(owner)
        taken: set[Path] = set()
        for run in runs(owner, anchor) if after else reversed(runs(owner, anchor)):
            start = run[-1].path[-1][1] + 1 if after else run[0].path[-1][1] - len(new)
            beside = here[max(start, 0) : start + len(new)] if start >= 0 else []
            done = len(beside) == len(new) and all(same(n, s.node) for n, s in zip(new, beside, strict=True))
            if not taken & _paths(run):
                anchors.append(run)
                inserted.append(beside if done else [])
                taken |= _paths(*inserted[-1:])
    return anchors, inserted


def _state(edit: _Beside, files: Workspace, overlay: str, *, after: bool) -> Finding:
    source = files.source(edit.file)
    anchors, inserted = _anchored(edit, source, after=after)
    regions = tuple(path for run in (*anchors, *inserted) for path in _paths(run))
    if len(anchors) == edit.count and not any(inserted):
        return Finding(Found.BEFORE, regions=regions)
    if len(anchors) == edit.count and all(inserted):
        ours = frozenset(p for p in _paths(*inserted) if marked(source, p, overlay))
        landed = tuple(Landed(spot.path, uses=edit.uses) for run in inserted for spot in run)
        return Finding(Found.AFTER, marked=ours, regions=regions, landed=landed)
    times = f"is there {len(anchors)} times, {edit.count} expected" if anchors else "is not there"
    done = f", the new code beside it {n} times" if (n := sum(map(bool, inserted))) else ""
    hint = nearest(source, scopes(source, edit.scope, edit.within), block(edit.anchor))
    raise Lost(f"`{headline(edit.anchor)}` {times}{done}", hint)


def _apply(edit: _Beside, files: Workspace, overlay: str, *, after: bool) -> None:
    source = files.source(edit.file)
    anchors = _anchored(edit, source, after=after)[0]
    for run in reversed(anchors) if after else anchors:
        edge = run[-1] if after else run[0]
        new = _clones(edit.new, overlay)
        source = source.put(edge.path, *((edge.node, *new) if after else (*new, edge.node)))
    files.put(edit.file, source)


@dataclass(frozen=True)
class InsertAfter(_Beside):
    """Put the statements `new` right after the statements that match `anchor`, in which `...` is free.

    `uses` are the attributes, written `self.name`, that `new` relies on.
    """

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether the anchor is there, and `new` after it."""
        return _state(self, files, overlay, after=True)

    def apply(self, files: Workspace, overlay: str) -> None:
        """Insert it, marked."""
        _apply(self, files, overlay, after=True)


@dataclass(frozen=True)
class InsertBefore(_Beside):
    """Put the statements `new` right before the statements that match `anchor`, in which `...` is free.

    `uses` are the attributes, written `self.name`, that `new` relies on.
    """

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether the anchor is there, and `new` before it."""
        return _state(self, files, overlay, after=False)

    def apply(self, files: Workspace, overlay: str) -> None:
        """Insert it, marked."""
        _apply(self, files, overlay, after=False)


def _traces(owner: Spot, overlay: str) -> Iterator[Path]:
    """Give the marks that a deletion left in a block: lines of their own, or a marked `pass` that fills it."""
    module = isinstance(owner.node, cst.Module)  # the comments above a module's first statement are its header
    for spot in ([owner] if module else []) + lines(owner):
        name = "header" if isinstance(spot.node, cst.Module) else "leading_lines"
        for index, line in enumerate(getattr(spot.node, name, ())):
            if line.comment and line.comment.value == mark(overlay):
                yield (*spot.path, (name, index))
        filler = isinstance(spot.node, cst.SimpleStatementLine) and isinstance(spot.node.body[0], cst.Pass)
        if filler and overlay in marks_on(spot.node):
            yield spot.path


@dataclass(frozen=True)
class DeleteStatements:
    """Delete the consecutive statements `old`; the comments above them stay, and the mark takes their place.

    Where nothing is found and no mark is left, the statements may be gone upstream or merely changed. Only the part's
    `merged` predicate can tell, so that a part with deletions needs one.
    """

    file: str
    scope: str
    old: str
    within: tuple[str, ...] = ()
    count: int = 1

    @property
    def reach(self) -> Reach:
        """The scope."""
        return ((self.file, self.scope),)

    def _runs(self, source: Source) -> list[list[Spot]]:
        owners = scopes(source, self.scope, self.within)
        return [run for owner in owners for run in runs(owner, block(self.old), exactly=True)]

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether `old` is there, or our mark instead."""
        source = files.source(self.file)
        found, owners = self._runs(source), scopes(source, self.scope, self.within)
        if len(found) == self.count:
            return Finding(Found.BEFORE, regions=tuple(spot.path for run in found for spot in run))
        traces = frozenset(path for owner in owners for path in _traces(owner, overlay))
        if traces and not found:
            blocks = {path[:-2] if path[-1][0] == "leading_lines" else path[:-1] for path in traces}
            landed = tuple(Landed(path, reads=frozenset()) for path in sorted(blocks) if path)
            return Finding(Found.AFTER, marked=traces, landed=landed)
        times = f"is there {len(found)} times, {self.count} expected" if found else "is not there"
        raise Lost(f"`{headline(self.old)}` {times}", nearest(source, owners, block(self.old)))

    def apply(self, files: Workspace, overlay: str) -> None:
        """Delete them."""
        source = files.source(self.file)
        trace = cst.EmptyLine(comment=cst.Comment(mark(overlay)))
        for run in reversed(self._runs(source)):
            *above, (name, last) = run[-1].path
            body = along(source.module, tuple(above))[-1].body  # type: ignore[attr-defined]
            if last + 1 == len(body):
                filler = cst.SimpleStatementLine([cst.Pass()])
                source = put_run(source, run, [with_mark(filler, overlay)])
                continue
            follower = Spot((*above, (name, last + 1)), body[last + 1])
            lines_above = (trace, *getattr(follower.node, "leading_lines", ()))
            source = put_run(source, [*run, follower], [follower.node.with_changes(leading_lines=lines_above)])
        files.put(self.file, source)
