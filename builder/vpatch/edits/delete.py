"""Delete statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch import cst
from vpatch.edits.statements import put_run
from vpatch.marks import mark, marks_on, with_mark
from vpatch.model import Finding, Found
from vpatch.select import block, lines, nearest, runs, scopes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vpatch.select import Source
    from vpatch.syntax import Path, Spot
    from vpatch.workspace import Workspace


def _traces(owner: Spot, overlay: str) -> Iterator[Path]:
    """Give the marks that a deletion left in a block: lines of their own, or a marked `pass` that fills it."""
    for spot in lines(owner):
        for index, line in enumerate(getattr(spot.node, "leading_lines", ())):
            if line.comment and line.comment.value == mark(overlay):
                yield (*spot.path, ("leading_lines", index))
        filler = isinstance(spot.node, cst.SimpleStatementLine) and isinstance(spot.node.body[0], cst.Pass)
        if filler and overlay in marks_on(spot.node):
            yield spot.path


@dataclass(frozen=True)
class DeleteStatements:
    """Delete the consecutive statements `old`; the comments above them stay, and the mark takes their place.

    Where nothing is found and no mark is left, the statements may be gone upstream or merely changed: that never
    counts as done in a part of which anything is still to do.
    """

    file: str
    scope: str
    old: str
    within: tuple[str, ...] = ()
    count: int = 1

    def _runs(self, source: Source) -> list[tuple[Spot, list[Spot]]]:
        owners = scopes(source, self.scope, self.within)
        return [(o, run) for o in owners for run in runs(o, block(self.old), exactly=True)]

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether `old` is there, or our mark instead."""
        source = files.source(self.file)
        found = self._runs(source)
        owners = scopes(source, self.scope, self.within)
        traces = frozenset(path for owner in owners for path in _traces(owner, overlay))
        if len(found) == self.count and not traces:
            return Finding(Found.BEFORE, regions=tuple(run[0].path for _, run in found))
        if found:
            return Finding(
                Found.LOST, f"`{self.old.splitlines()[0]}` is there {len(found)} times, {self.count} expected"
            )
        if traces:
            return Finding(Found.AFTER, marked=traces)
        hint = nearest(source, owners, block(self.old))
        return Finding(Found.GONE, f"`{self.old.splitlines()[0]}` is not there{hint}")

    def apply(self, files: Workspace, overlay: str) -> None:
        """Delete them."""
        source = files.source(self.file)
        trace = cst.EmptyLine(comment=cst.Comment(mark(overlay)))
        for owner, run in reversed(self._runs(source)):
            here = lines(owner)
            follower = run[-1].path[-1][1] + 1
            if follower == len(here):
                filler = cst.SimpleStatementLine([cst.Pass()])
                source = put_run(source, run, [with_mark(filler, overlay)])
                continue
            after = here[follower].node
            above = (trace, *getattr(after, "leading_lines", ()))
            source = put_run(source, [*run, here[follower]], [after.with_changes(leading_lines=above)])
        files.put(self.file, source)
