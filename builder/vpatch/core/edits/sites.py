"""Find where the code before and after a hunk stands in a module."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vpatch.core.edits.hunk import Aligned, Hunk
from vpatch.core.matching import Matcher, Pieces, differing_pieces, is_hole, pieces_of, same
from vpatch.core.parse import Source
from vpatch.core.syntax import BLOCKS, DEFINITIONS, Path, Spot, behind_docstring, has_block, inside, steps, walk, within


@dataclass(frozen=True)
class Match:
    """A run of statements that matches one side of a hunk, or an expression that does.

    Attributes:
        block: the block that the statements stand in.
        rows: its statements, or the expression.
        start: the index of the first one.
        end: the index behind the last one.
        bound: what the nodes and metavariables of the hunk stand for.
    """

    block: Spot
    rows: tuple[Spot, ...]
    start: int
    end: int
    bound: dict[object, Any]

    @property
    def spots(self) -> tuple[Spot, ...]:
        """The statements that match, or the expression."""
        return self.rows[self.start : self.end]

    @cached_property
    def _paths(self) -> dict[int, Path]:
        return {id(spot.node): spot.path for row in self.spots for spot in walk(row, BLOCKS)}

    def path(self, node: Any) -> Path:
        """Return where a statement, handler or case of the hunk stands."""
        return self._paths[id(self.bound[id(node)])]

    def path_within(self, node: Any, around: Spot) -> Path:
        """Return where an expression of the hunk stands, in the statement or expression around it."""
        return next(spot.path for spot in walk(around) if spot.node is self.bound[id(node)])

    def meets(self, other: Match) -> bool:
        """Whether two sites share code."""
        return any(inside(a.path, b.path) or inside(b.path, a.path) for a in self.spots for b in other.spots)

    def context(self, hunk: Hunk, *, new: bool = False) -> Iterator[Path]:
        """Yield what the hunk leans on: statements and headers that stay as they are."""
        for item in hunk.every:
            if not item.stays or item.free or item.changes:
                continue
            side = item.new if new else item.old
            if has_block(side):
                node = self.bound[id(side)]
                yield from ((*self.path(side), step) for step, _ in steps(node) if step[0] not in BLOCKS)
            else:
                yield self.path(side)


class Search:
    """The places of the code before and after a hunk, in some blocks of a module.

    Args:
        hunk: the hunk.
        source: the module.
        owners: the blocks to look in, and in those inside them.
        beside: statements, as `ast.dump` spells them, that may stand between those of the hunk, as marked ones may.
        module_level: whether imports may, too.
    """

    def __init__(
        self, hunk: Hunk, source: Source, owners: Sequence[Spot], beside: Sequence[str], *, module_level: bool
    ) -> None:
        self.hunk, self.source, self.owners = hunk, source, owners
        self._beside, self._module_level = beside, module_level
        before, after = (list(self._sites(new=new)) for new in (False, True))
        if not hunk.swap and all(map(is_hole, hunk.before)):  # it fits at the edge of any block
            before = [] if after else before
        elif self._prefers_after():
            before = [one for one in before if not any(one.meets(other) for other in after)]
        else:
            after = [one for one in after if not any(one.meets(other) for other in before)]
        self.before, self.after = before, after

    def _prefers_after(self) -> bool:
        """Whether the code after counts where both fit at one place: the longer one does, or, of equal ones, it."""
        if not self.hunk.swap:
            return _count(self.hunk.after) >= _count(self.hunk.before)
        old, new = self.hunk.swap
        return (self.hunk.within and self.hunk.grows) or any(same(old, node) for node in ast.walk(new))

    def matcher(self, *, new: bool) -> Matcher:
        """Return what matches one side of the hunk."""
        return Matcher(clear=self._clear, pieces=self._pieces[new])

    @cached_property
    def _pieces(self) -> tuple[dict[int, Pieces], dict[int, Pieces]]:
        """What the headers of definitions must have, in the code before and after."""
        found: tuple[dict[int, Pieces], dict[int, Pieces]] = ({}, {})
        for item in self.hunk.every:
            for new, side in enumerate((item.old, item.new)):
                if item.stays and item.changes and isinstance(side, DEFINITIONS):
                    keys = differing_pieces(item.old, item.new)
                    found[new][id(side)] = {key: pieces_of(side).get(key) for key in keys}
                for node in ast.walk(side) if side is not None and not item.stays else ():
                    if isinstance(node, DEFINITIONS):  # one that comes is as written; of one that goes, what is written
                        found[new][id(node)] = {key: piece for key, piece in pieces_of(node).items() if piece or new}
        return found

    def _clear(self, node: ast.stmt) -> bool:
        """Whether a statement that the hunk does not have may stand between its own."""
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                return True
            case ast.Import() | ast.ImportFrom() if self._module_level:
                return True
        return bool(self.source.marks_on(node)) or (bool(self._beside) and ast.dump(node) in self._beside)

    def _sites(self, *, new: bool) -> Iterator[Match]:
        if self.hunk.swap:
            yield from self._expressions(self.hunk.swap[new])
            return
        rows = list(self.hunk.after if new else self.hunk.before)
        while rows and is_hole(rows[0]):
            rows.pop(0)
        while rows and is_hole(rows[-1]):
            rows.pop()
        for owner in self.owners:
            if rows:
                for block, here in self.source.blocks(owner):
                    yield from self._runs(rows, block, here, new=new)
            elif not new and (here := self.source.block(owner)):
                edge = behind_docstring(here) if self.hunk.top else len(here)
                yield Match(owner, tuple(here), edge, edge, {})

    def _runs(self, rows: Sequence[ast.stmt], block: Spot, here: Sequence[Spot], *, new: bool) -> Iterator[Match]:
        nodes, done = [spot.node for spot in here], 0
        for start, node in enumerate(nodes):
            if start < done or type(node) is not type(rows[0]):
                continue
            if self.hunk.top and not all(map(self._clear, nodes[:start])):
                return
            matcher = self.matcher(new=new)
            if matcher.match(rows[0], node) and matcher.match_rows(rows[1:], nodes, start + 1, whole=self.hunk.bottom):
                end = next(k for k, one in enumerate(nodes) if one is matcher.bound[id(rows[-1])]) + 1
                site = Match(block, tuple(here), start, end, matcher.bound)
                if new or self._has_its_lines(site):
                    yield site
                    done = end

    def _has_its_lines(self, site: Match) -> bool:
        """Whether nothing shares a line with what goes, or with the place of what comes."""
        for block, went, below, _ in places(self.hunk.items, site, site.block):
            here = [spot.node for spot in self.source.block(block)]
            if went and (
                went[-1] - went[0] + 1 != len(went)  # other code stands between
                or not here
                or not self.source.fills_lines(here[went[0]], here[went[-1]])
            ):
                return False
            if not went and (not here or (below < len(here) and not self.source.begins_line(here[below]))):
                return False
        return True

    def _expressions(self, pattern: ast.expr) -> Iterator[Match]:
        """Yield the outermost expressions that match."""
        last: Path | None = None
        for owner in self.owners:
            for spot in self.source.expressions(owner).get(type(pattern), ()):
                matcher = Matcher(pieces={})
                if (last is None or not inside(spot.path, last)) and matcher.match(pattern, spot.node):
                    last = spot.path
                    yield Match(owner, (spot,), 0, 1, matcher.bound)

    def standing(self, items: Sequence[Aligned], *, new: bool) -> Iterator[Spot]:
        """Yield the statements without a mark that are those of items, wherever they stand in the blocks."""
        rows = [s for owner in self.owners for _, here in self.source.blocks(owner) for s in here] if items else []
        for spot in rows:
            if not self.source.marks_on(spot.node):
                nodes = (item.new if new else item.old for item in items)
                yield from (spot for node in nodes if Matcher(pieces={}).match(node, spot.node))

    def traces(self, overlay: str) -> frozenset[int]:
        """Return the lines with an overlay's marks that deletions left."""
        return frozenset(line for owner in self.owners for line in self.source.traces_in(owner, overlay))


Place = tuple[Spot, list[int], int, Sequence[Aligned]]
"""A block, the indices of the statements that go there, that of the one behind the gap, and what goes and comes."""


def places(items: Sequence[Aligned], site: Match, block: Spot) -> Iterator[Place]:
    """Yield the places of the statements that go or come, in a block and in those of the statements that stay."""
    for above, run, below, where in _runs(items, site, block):
        went = [site.path(item.old)[-1][1] for item in run if item.old is not None]
        if below and not below.free:
            gap = site.path(below.old)[-1][1]
        elif above and not above.free:
            gap = site.path(above.old)[-1][1] + 1
        else:
            here = within(where)
            gap = behind_docstring(here) if above is None else len(here)
        yield where, went, gap, run


_Run = tuple[Aligned | None, Sequence[Aligned], Aligned | None, Spot]
"""The item above, what goes or comes, the item below, and the block that they stand in."""


def _runs(items: Sequence[Aligned], site: Match, block: Spot) -> Iterator[_Run]:
    k = 0
    while k < len(items):
        if items[k].stays:
            for owner, name, inner in items[k].blocks:
                if owner is not None:
                    yield from _runs(inner, site, Spot(site.path(owner), site.bound[id(owner)], name))
            k += 1
            continue
        end = next((n for n in range(k, len(items)) if items[n].stays), len(items))
        yield (items[k - 1] if k else None), items[k:end], (items[end] if end < len(items) else None), block
        k = end


def _count(rows: Sequence[ast.stmt]) -> int:
    return sum(1 for row in rows for _ in ast.walk(row))
