"""Delete statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch.core import cst
from vpatch.core.edits.statements import put_run
from vpatch.core.marks import mark, marks_on, with_mark
from vpatch.core.parse import Lost
from vpatch.core.select import block, headline, lines, nearest, runs, scopes
from vpatch.core.syntax import Spot, along
from vpatch.core.verdict import Finding, Found, Landed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vpatch.core.overlay import Reach
    from vpatch.core.parse import Source
    from vpatch.core.syntax import Path
    from vpatch.core.workspace import Workspace


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
