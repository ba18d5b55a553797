"""Replace, insert and delete statements. They stand directly in the block that scope and headers lead to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from vpatch.core import cst
from vpatch.core.edits import CodeEdit, classify, marked, occurs
from vpatch.core.marks import mark, marks_on, with_mark
from vpatch.core.parse import Lost, Source
from vpatch.core.select import block, headline, lines, nearest, runs
from vpatch.core.syntax import Path, Spot, along, same
from vpatch.core.verdict import EditFinding, Found, Landed

Run = list[Spot]


def _clones(code: str, overlay: str) -> list[cst.CSTNode]:
    return [with_mark(statement.deep_clone(), overlay) for statement in block(code)]


def _paths(*found: Run) -> set[Path]:
    return {spot.path for run in found for spot in run}


def _disjoint(found: list[Run], others: list[Run]) -> list[Run]:
    taken = _paths(*others)
    return [run for run in found if not taken & _paths(run)]


def _put_run(source: Source, run: Run, new: list[cst.CSTNode]) -> Source:
    """Replace a run of statements; the comments above its first statement stay."""
    above = getattr(run[0].node, "leading_lines", ())
    first = new[0].with_changes(leading_lines=(*above, *getattr(new[0], "leading_lines", ())))
    for spot in reversed(run[1:]):
        source = source.put(spot.path)
    return source.put(run[0].path, first, *new[1:])


@dataclass(frozen=True)
class ReplaceStatements(CodeEdit):
    """Replace the consecutive statements `old` by `new`. One may contain the other."""

    old: str
    new: str

    def _runs(self, source: Source, overlay: str) -> tuple[list[Run], list[Run], list[Run]]:
        """Return the runs that are `old`, the runs that are `new`, and which of the latter are marked."""
        owners = self._owners(source)
        old, new = ([r for o in owners for r in runs(o, block(c), exactly=True)] for c in (self.old, self.new))
        ours = [run for run in new if all(marked(source, path, overlay) for path in _paths(run))]
        old = _disjoint(old, ours)
        small, big = block(self.old), block(self.new)
        wraps = any(same(small, big[start : start + len(small)]) for start in range(len(big) - len(small) + 1))
        return (_disjoint(old, new), new, ours) if wraps else (old, _disjoint(new, old), ours)

    def _find(self, source: Source, overlay: str) -> EditFinding:
        old, new, ours = self._runs(source, overlay)
        return classify(
            [_paths(run) for run in old],
            [_paths(run) for run in ours or new],
            frozenset(_paths(*ours)),
            landed=lambda path: Landed(path, uses=self.uses),
            count=self.count,
            wanted=f"`{headline(self.old)}`",
            hint=nearest(source, self._owners(source), block(self.old)),
        )

    def _make(self, source: Source, overlay: str) -> Source:
        for run in reversed(self._runs(source, overlay)[0]):
            source = _put_run(source, run, _clones(self.new, overlay))
        return source


@dataclass(frozen=True)
class _Insert(CodeEdit):
    anchor: str
    new: str

    _after: ClassVar[bool]

    def _anchored(self, source: Source) -> tuple[list[Run], list[Run]]:
        """Return the runs that `anchor` matches, and for each the copy of `new` beside it, empty without one.

        `new` may contain `anchor`: matches inside an inserted copy do not count.
        """
        anchor, new = block(self.anchor), block(self.new)
        anchors: list[Run] = []
        inserted: list[Run] = []
        for owner in self._owners(source):
            here = lines(owner)
            taken: set[Path] = set()
            for run in runs(owner, anchor) if self._after else reversed(runs(owner, anchor)):
                start = run[-1].path[-1][1] + 1 if self._after else run[0].path[-1][1] - len(new)
                beside = here[max(start, 0) : start + len(new)] if start >= 0 else []
                done = len(beside) == len(new) and all(same(n, s.node) for n, s in zip(new, beside, strict=True))
                if not taken & _paths(run):
                    anchors.append(run)
                    inserted.append(beside if done else [])
                    taken |= _paths(*inserted[-1:])
        return anchors, inserted

    def _find(self, source: Source, overlay: str) -> EditFinding:
        anchors, inserted = self._anchored(source)
        done = sum(map(bool, inserted))
        if len(anchors) != self.count or done not in {0, self.count}:
            some = f", the new code beside it {done} times" if done else ""
            hint = nearest(source, self._owners(source), block(self.anchor))
            raise Lost(f"`{headline(self.anchor)}` {occurs(len(anchors), self.count)}{some}", hint)
        regions = tuple(sorted(_paths(*anchors, *inserted)))
        ours = frozenset(path for path in _paths(*inserted) if marked(source, path, overlay))
        landed = tuple(Landed(spot.path, uses=self.uses) for run in inserted for spot in run)
        found = Found.AFTER if done else Found.BEFORE
        return EditFinding(found, marked=ours, regions=regions, landed=landed)

    def _make(self, source: Source, overlay: str) -> Source:
        anchors = self._anchored(source)[0]
        for run in reversed(anchors) if self._after else anchors:
            edge = run[-1] if self._after else run[0]
            new = _clones(self.new, overlay)
            source = source.put(edge.path, *((edge.node, *new) if self._after else (*new, edge.node)))
        return source


@dataclass(frozen=True)
class InsertAfter(_Insert):
    """Insert the statements `new` right after the statements that match `anchor`, in which `...` is free."""

    _after = True


@dataclass(frozen=True)
class InsertBefore(_Insert):
    """Insert the statements `new` right before the statements that match `anchor`, in which `...` is free."""

    _after = False


def _traces(owner: Spot, overlay: str) -> Iterator[Path]:
    """Yield the marks that deletions left in a block: comment lines, or a marked `pass` that fills it."""
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
class DeleteStatements(CodeEdit):
    """Delete the consecutive statements `old` and put the mark in their place. The comments above them stay.

    Without the statements and without a mark, upstream may have deleted or merely changed them. Only the part's
    `merged` predicate knows, so a part with deletions needs one.
    """

    old: str

    def _runs(self, source: Source) -> list[Run]:
        owners = self._owners(source)
        return [run for owner in owners for run in runs(owner, block(self.old), exactly=True)]

    def _find(self, source: Source, overlay: str) -> EditFinding:
        found, owners = self._runs(source), self._owners(source)
        if len(found) == self.count:
            return EditFinding(Found.BEFORE, regions=tuple(sorted(_paths(*found))))
        traces = frozenset(path for owner in owners for path in _traces(owner, overlay))
        if traces and not found:
            blocks = {path[:-2] if path[-1][0] == "leading_lines" else path[:-1] for path in traces}
            landed = tuple(Landed(path, reads=frozenset(), uses=self.uses) for path in sorted(blocks) if path)
            return EditFinding(Found.AFTER, marked=traces, landed=landed)
        raise Lost(f"`{headline(self.old)}` {occurs(len(found), self.count)}", nearest(source, owners, block(self.old)))

    def _make(self, source: Source, overlay: str) -> Source:
        trace = cst.EmptyLine(comment=cst.Comment(mark(overlay)))
        for run in reversed(self._runs(source)):
            *above, (name, last) = run[-1].path
            body = along(source.module, tuple(above))[-1].body  # type: ignore[attr-defined]
            if last + 1 == len(body):
                source = _put_run(source, run, [with_mark(cst.SimpleStatementLine([cst.Pass()]), overlay)])
                continue
            follower = Spot((*above, (name, last + 1)), body[last + 1])
            lines_above = (trace, *getattr(follower.node, "leading_lines", ()))
            source = _put_run(source, [*run, follower], [follower.node.with_changes(leading_lines=lines_above)])
        return source
