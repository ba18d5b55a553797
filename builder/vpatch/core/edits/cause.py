"""Messages for a hunk that does not fit: the piece that differs, and the code found in its place."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any

from vpatch.core.edits.hunk import Hunk, shown
from vpatch.core.edits.within import changes, header_differs
from vpatch.core.matching import Matcher, is_hole, same
from vpatch.core.parse import Source, first_line, quoted
from vpatch.core.select import address_of, most_alike, spelled, spelling
from vpatch.core.syntax import BLOCKS, Path, Spot, header_fields, steps

if TYPE_CHECKING:
    from vpatch.core.edits.sites import Match, Search


def cause(hunk: Hunk, source: Source, search: Search, count: int) -> str:
    """Return what stands there instead of a hunk's code."""
    before, after = search.before, search.after
    name = f"`{_named(hunk)}`"
    if double := _double(hunk, source, search):
        return double
    if before or (after and (hunk.swap or hunk.telling)):
        lines = ", ".join(map(str, sorted(source.line(site.rows[site.start].path) for site in before if site.rows)))
        where = f" (line{'s' * (len(before) > 1)} {lines})" if lines else ""
        times = f"{name} is there {len(before)} times, {count} expected{where}" if before else f"{name} is not there"
        told = f"{times}, what replaces it {len(after)} times" if after else times
        return f"{told}{_addresses(source, before, count)}" if len(before) > count else told
    found = None if hunk.swap else _difference(source, search.matcher(new=False), hunk, search.owners)
    if found:
        return found
    near = most_alike(source, search.owners, hunk.first, _named(hunk))
    if near and max(len(_named(hunk)), len(source.quoted(near.node))) >= _CUT:
        line = source.line(near.path)
        if found := _apart(source, search.matcher(new=False), hunk, hunk.first, near.node, line):
            return found
    hint = f"; nearest, line {source.line(near.path)}: `{source.quoted(near.node)}`" if near else ""
    return f"{name} is not there{hint}"


def _addresses(source: Source, sites: Sequence[Match], count: int) -> str:
    """Return the addresses of the blocks with `count` of the sites; else, what sets those of one block apart."""
    paths = sorted((site.spots[0].path for site in sites if site.spots), key=source.line)
    found: dict[tuple[str, ...], set[tuple[object, ...]]] = {}
    for path in paths:
        found.setdefault(address_of(source, path), set()).add(_block(path))
    alone = []
    for path in paths:
        address, block = address_of(source, path), _block(path)
        held = sum(_block(other)[: len(block)] == block for other in paths)
        if address and len(found[address]) == 1 and held == count < len(paths):
            alone.append(f"`{spelled(*address)}` (line {source.line(path)})")
    names = ", ".join([*dict.fromkeys(alone)][:_MOST])
    return f"; to take one, write its address: {names}" if names else "; write more of the lines around it"


_MOST = 5  # addresses in a message


def _block(path: Path) -> tuple[object, ...]:
    """Return the block that the statement at, or around, a path stands in, as steps and the field of the last one."""
    steps = list(takewhile(lambda step: step[0] in BLOCKS, path))
    return (*(word for step in steps[:-1] for word in step), steps[-1][0])


def _double(hunk: Hunk, source: Source, search: Search) -> str | None:
    """Describe the call that has the keyword that comes, with another value."""
    if not (hunk.swap and hunk.within and isinstance(call := hunk.swap[0], ast.Call)):
        return None
    come = {one.new.arg: one.new for one in changes(*hunk.swap) if isinstance(one.new, ast.keyword)}
    for spot in (spot for owner in search.owners for spot in source.expressions(owner).get(ast.Call, ())):
        there = [one for one in spot.node.keywords if one.arg in come]
        bare = ast.Call(spot.node.func, spot.node.args, [one for one in spot.node.keywords if one not in there])
        other = [one for one in there if not same(one.value, come[one.arg].value)]
        if other and Matcher(pieces={}).match(call, bare):
            return f"`{_named(hunk)}` already has `{source.quoted(other[0])}`, line {source.line(spot.path)}"
    return None


def _named(hunk: Hunk) -> str:
    """Return the code to name: what goes, or else the context."""
    return shown(ast.unparse(hunk.first)) if hunk.within else _quoted(hunk.was, hunk.first)


def _quoted(lines: Sequence[str], node: Any) -> str:
    return shown(quoted(lines, node))


def _difference(source: Source, matcher: Matcher, hunk: Hunk, owners: Sequence[Spot]) -> str | None:
    """Describe what differs where most of the hunk stands; None if nothing of it stands anywhere."""
    head, *_ = [*_runs(hunk.before), ()]
    blocks = [[spot.node for spot in here] for owner in owners for _, here in source.blocks(owner)]
    score, offset, nodes = max(
        ((*_aligned(matcher, head, nodes), nodes) for nodes in blocks), key=lambda found: found[0], default=(0, 0, [])
    )
    return _misfit(source, matcher, hunk, head, nodes, offset) if score else None


def _runs(rows: Sequence[ast.stmt]) -> Iterator[Sequence[ast.stmt]]:
    """Yield the runs of statements between gaps."""
    for gap, run in groupby(rows, is_hole):
        if not gap:
            yield list(run)


def _aligned(matcher: Matcher, rows: Sequence[ast.stmt], nodes: Sequence[ast.stmt]) -> tuple[int, int]:
    """Return how much of a run of statements stands in a block at best, and the index at which it would begin."""
    offsets = range(1 - len(rows), len(nodes))
    scores = [(sum(_likeness(matcher, row, nodes, at + k) for k, row in enumerate(rows)), at) for at in offsets]
    return max(scores, key=lambda pair: pair[0], default=(0, 0))


def _misfit(
    source: Source, matcher: Matcher, hunk: Hunk, rows: Sequence[ast.stmt], nodes: Sequence[ast.stmt], offset: int
) -> str | None:
    for k, row in enumerate(rows):
        if _likeness(matcher, row, nodes, offset + k) < _EQUAL:
            return _differs(source, matcher, hunk, row, nodes, offset + k)
    return None


_EQUAL, _SAME_HEADER = 4, 2
_CUT = 80
"""Code of so many characters is cut, so that it may not show where it differs."""


def _likeness(matcher: Matcher, row: ast.stmt, nodes: Sequence[ast.stmt], k: int) -> int:
    if not 0 <= k < len(nodes):
        return 0
    if matcher.fits(row, nodes[k]):
        return _EQUAL
    alike = type(row) is type(nodes[k]) and hasattr(row, "body") and not header_differs(row, nodes[k])
    return _SAME_HEADER if alike else 0


def _differs(source: Source, matcher: Matcher, hunk: Hunk, row: Any, nodes: Sequence[Any], k: int) -> str:
    wanted = f"`{_quoted(hunk.was, row)}`"
    if k >= len(nodes):
        return f"{wanted} is not there: the block ends in line {first_line(nodes[-1])}"
    there = nodes[max(k, 0)]
    if any(matcher.fits(row, node) for node in nodes):
        return f"line {first_line(there)} has `{source.quoted(there)}`, which the hunk does not have"
    if type(row) is type(there):
        if hasattr(row, "body") and not header_differs(row, there):
            for name in ("body", "orelse", "finalbody"):
                mine, theirs = getattr(row, name, None) or [], getattr(there, name, None) or []
                if mine and theirs and not matcher.match_rows(mine, theirs, 0, whole=True):
                    return _in_block(source, matcher, hunk, mine, theirs)
            if branch := _branch(source, hunk, row, there):
                return branch
        long = max(len(wanted), len(source.quoted(there))) >= _CUT
        if long and (found := _apart(source, matcher, hunk, row, there, first_line(there))):
            return found
    return f"{wanted} is not there; line {first_line(there)} has `{source.quoted(there)}`"


def _branch(source: Source, hunk: Hunk, row: Any, there: Any) -> str | None:
    """Describe the branch that only one of two statements has."""
    for name in ("handlers", "orelse", "finalbody"):
        mine, theirs = (getattr(node, name, None) or [] for node in (row, there))
        if len(theirs) > len(mine):
            extra = theirs[len(mine)]
            bare = {"orelse": "else", "finalbody": "finally"}.get(name, "") if not source.is_elif(extra) else ""
            word = bare or spelling(source, extra)
            return (
                f"the statement in line {first_line(there)} has a branch `{word}:` (line {first_line(extra)}), which "
                "the hunk does not have: write it, with `...` for its lines, or begin in the block, by an address"
            )
        if len(mine) > len(theirs):
            gone = _quoted(hunk.was, mine[len(theirs)])
            return f"the statement in line {first_line(there)} has no branch with `{gone}`"
    return None


def _in_block(
    source: Source, matcher: Matcher, hunk: Hunk, mine: Sequence[ast.stmt], theirs: Sequence[ast.stmt]
) -> str:
    for run in _runs(mine):
        if not any(matcher.match_rows(run, theirs, k) for k in range(len(theirs))):
            score, offset = _aligned(matcher, run, theirs)
            offset = offset if score else 0
            if (score or not any(map(is_hole, mine))) and (
                found := _misfit(source, matcher, hunk, run, theirs, offset)
            ):
                return found
            return f"`{_quoted(hunk.was, run[0])}` is not in the block of line {first_line(theirs[0])}"
    more = [node for node in theirs if not any(matcher.fits(row, node) for row in mine if not is_hole(row))]
    extra = (more or theirs)[0]
    return f"line {first_line(extra)} has `{source.quoted(extra)}`, which the hunk does not have"


def _apart(source: Source, matcher: Matcher, hunk: Hunk, p: Any, f: Any, line: int) -> str | None:
    """Describe the outermost nodes within two that differ and whose code is not cut, so that a reader sees where."""
    if type(p) is not type(f):
        return None
    if isinstance(p, ast.Call) and matcher.fits(p.func, f.func) and (found := _argument(source, hunk, p, f, line)):
        return found
    mine, theirs = (dict(steps(node, header_fields(node))) for node in (p, f))
    plain = [n for n in header_fields(p) if not isinstance(getattr(p, n), ast.AST | list)]
    if any(getattr(p, n) != getattr(f, n) for n in plain):
        return None
    wrong = [s for s in mine if s not in theirs or not matcher.fits(mine[s], theirs[s])]
    step = next(iter(wrong or (s for s in theirs if s not in mine)), None)
    one: Any = mine.get(step) if step else None
    other: Any = theirs.get(step) if step else None
    if not hasattr(one or other, "lineno"):  # an operator
        return None
    if one is None:
        return f"line {line} has `{source.quoted(other)}`, which the hunk does not have"
    if other is None:
        return f"`{_quoted(hunk.was, one)}` is not in line {line}"
    said, there = _quoted(hunk.was, one), source.quoted(other)
    deeper = _apart(source, matcher, hunk, one, other, line) if max(len(said), len(there)) >= _CUT else None
    return deeper or f"`{said}` is not there; line {line} has `{there}`"


def _argument(source: Source, hunk: Hunk, p: ast.Call, f: ast.Call, line: int) -> str | None:
    """Describe the keyword that one of two calls lacks."""
    mine, theirs = ({one.arg: one for one in call.keywords} for call in (p, f))
    call = shown(ast.unparse(p.func))
    if lacking := [one for arg, one in mine.items() if arg not in theirs and not is_hole(one)]:
        return f"`{_quoted(hunk.was, lacking[0])}` is not in the call of `{call}` in line {line}"
    if more := [
        one for arg, one in theirs.items() if arg not in mine and not any(map(is_hole, [*p.args, *p.keywords]))
    ]:
        return f"line {line} has `{source.quoted(more[0])}` in the call of `{call}`, which the hunk does not have"
    return None
