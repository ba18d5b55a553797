"""Make the changes of a hunk at one place: the statements that come and go, and what changes within others."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vpatch.core import cst
from vpatch.core.changes import BEFORE, Amendment, Splice
from vpatch.core.edits.hunk import Hunk
from vpatch.core.edits.sites import Match, places
from vpatch.core.edits.within import Within, changes, entries
from vpatch.core.lists import parenthesized, with_entries, with_pieces
from vpatch.core.matching import META, differing_pieces, is_hole
from vpatch.core.parse import Source, first_line, text_of
from vpatch.core.syntax import DEFINITIONS, Spot

if TYPE_CHECKING:
    from vpatch.core.changes import Change

Fill = Callable[[str], str]


def made(hunk: Hunk, site: Match, source: Source, overlay: str) -> Iterator[Change]:
    """Yield what changes at a place of the code before."""
    fill = partial(_filled, source, site.bound)
    if hunk.swap:
        (spot,) = site.spots
        if hunk.within:
            yield from _within(hunk, hunk.swap, site, spot, overlay, fill)
        else:
            yield Amendment(spot.path, overlay, partial(_replaced, fill(_code(hunk, hunk.swap[1]))))
        return
    for block, went, gap, run in places(hunk.items, site, site.block):
        new = fill("".join(item.code for item in run if item.new is not None))
        if went:
            yield Splice(block, went[0], went[-1] + 1, new, overlay)
        else:
            yield Splice(block, gap, gap, new, overlay, rank=BEFORE)
    for item in (item for item in hunk.every if item.changes):
        spot = Spot(site.path(item.old), site.bound[id(item.old)])
        if isinstance(item.old, DEFINITIONS):
            keys, header = differing_pieces(item.old, item.new), fill(_header(hunk, item.new))
            yield Amendment(spot.path, overlay, partial(_with_header, keys, header))
        else:
            yield from _within(hunk, (item.old, item.new), site, spot, overlay, fill)


def _within(
    hunk: Hunk, pair: tuple[Any, Any], site: Match, around: Spot, overlay: str, fill: Fill
) -> Iterator[Amendment]:
    lists: dict[int, list[Within]] = {}
    for change in changes(*pair):
        if change.kind == "swap":
            path = site.path_within(change.old, around)
            yield Amendment(path, overlay, partial(_replaced, fill(_code(hunk, change.new))))
        else:
            lists.setdefault(id(change.old), []).append(change)
    for some in lists.values():
        gone, come = _entries(hunk, some, site, fill)
        path = site.path_within(some[0].old, around)
        yield Amendment(path, overlay, partial(_with_entries, gone, come))


def _entries(hunk: Hunk, some: Sequence[Within], site: Match, fill: Fill) -> tuple[list[int], list[tuple[int, str]]]:
    """Return the indices of the entries that go from a list, and the index and the code of each that comes."""
    owner = some[0].old
    there, mine = entries(site.bound[id(owner)]) or [], entries(owner) or []

    def at(entry: Any) -> int:
        found = site.bound[id((entry[0] or entry[1]) if isinstance(entry, tuple) else entry)]
        return next(k for k, one in enumerate(there) if found is one or (isinstance(one, tuple) and found in one))

    come = []
    for change in (one for one in some if one.kind == "come"):
        above = mine[change.index - 1] if change.index else None
        below = mine[change.index] if change.index < len(mine) else None
        if above is not None and not _is_gap(above):
            place = at(above) + 1
        elif below is not None and not _is_gap(below):
            place = at(below)
        else:
            place = len(there) if above is not None else 0
        if isinstance(change.new, ast.keyword):  # behind positional arguments, before any `**mapping`
            place = max([place, *(k + 1 for k, one in enumerate(there) if not isinstance(one, ast.keyword))])
        place = min([place, *(k for k, one in enumerate(there) if isinstance(one, ast.keyword) and one.arg is None)])
        come.append((place, fill(_entry(hunk, change.new))))
    return [at(mine[one.index]) for one in some if one.kind == "go"], come


def _is_gap(entry: Any) -> bool:
    return entry[0] is None and is_hole(entry[1]) if isinstance(entry, tuple) else is_hole(entry)


def _with_header(keys: Sequence[str], header: str, node: Any, _: Any) -> Any:
    return with_pieces(node, keys, header)


def _with_entries(gone: Sequence[int], come: Sequence[tuple[int, str]], node: Any, _: Any) -> Any:
    return with_entries(node, gone, come)


def _replaced(code: str, old: Any, parent: Any) -> Any:
    return parenthesized(cst.parse_expression(code), old, parent)


def _code(hunk: Hunk, node: Any) -> str:
    """Return the code of an expression that comes; over lines, it has parentheses."""
    text = text_of(hunk.lines, node)
    closed = ast.Call | ast.Subscript | ast.Dict | ast.List | ast.Set | ast.Tuple | ast.GeneratorExp | ast.ListComp
    return f"({text})" if "\n" in text and not isinstance(node, closed) else text


def _entry(hunk: Hunk, entry: Any) -> str:
    if not isinstance(entry, tuple):
        return text_of(hunk.lines, entry)
    key, value = entry
    return f"{text_of(hunk.lines, key)}: {_code(hunk, value)}" if key is not None else f"**{_code(hunk, value)}"


def _header(hunk: Hunk, node: Any) -> str:
    """Return the header of a definition, with an empty body."""
    code = [line[node.col_offset :] for line in hunk.lines[first_line(node) - 1 : node.body[0].lineno - 1]]
    return "".join(code) + "    ...\n" if code else text_of(hunk.lines, node)


def _filled(source: Source, bound: dict[object, Any], code: str) -> str:
    """Return new code, with the code that its metavariables stand for."""
    solid = ast.Name | ast.Call | ast.Attribute | ast.Subscript | ast.Constant | ast.JoinedStr

    def value(found: re.Match[str]) -> str:
        node = bound[found[0]]
        text = source.text_of(node)
        return text if isinstance(node, solid) else f"({text})"

    return re.sub(rf"\b{META}\w+", value, code)
