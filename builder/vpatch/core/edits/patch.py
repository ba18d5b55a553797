"""The edit that a hunk describes, and what it finds."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from vpatch.core.edits import CodeEdit, names_read_by
from vpatch.core.edits.cause import cause
from vpatch.core.edits.hunk import Hunk
from vpatch.core.edits.making import made
from vpatch.core.edits.reading import read
from vpatch.core.edits.sites import Match, Search, places
from vpatch.core.edits.within import changes
from vpatch.core.landing.binding import Read
from vpatch.core.lists import placed
from vpatch.core.matching import META, differing_pieces, is_hole, pieces_of
from vpatch.core.parse import Lost, Source
from vpatch.core.syntax import DEFINITIONS, Path, has_block, inside
from vpatch.core.verdict import EditFinding, Found, Landed

if TYPE_CHECKING:
    from vpatch.core.changes import Change

Pieces = Mapping[str, Any]


@dataclass(frozen=True)
class Patch(CodeEdit):
    """Change code as a hunk says, in any block of `scope` and `within`, but in no function or class defined there.

    Attributes:
        file: the module's path, relative to the folder that holds `vllm/`.
        scope: a qualified name in it; "" is the module.
        within: the headers, without colon, of the blocks that lead from the scope to the code.
        count: how often the code must occur.
        uses: the attributes, written `self.name`, that the new code relies on.
        text: the hunk, without an address.
        names: the code of metavariables that the author knows.
        beside: what other hunks of the same patch bring; upstream's copy of it may stand between this one's lines.
    """

    text: str
    names: tuple[tuple[str, str], ...] = ()
    beside: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def hunk(self) -> Hunk:
        """The hunk, parsed."""
        return read(self.text, self.names)

    def _search(self, source: Source) -> Search:
        return Search(self.hunk, source, self._owners(source), self.beside, module_level=not self.scope)

    def _find(self, source: Source, overlay: str) -> EditFinding:
        hunk, search = self.hunk, self._search(source)
        find = self._expression if hunk.swap else self._statements
        if found := find(hunk, search, source, overlay):
            return found
        # A search would keep the syntax tree alive.
        raise Lost("", lambda: cause(hunk, source, self._search(source), self.count))

    def _changes(self, source: Source, overlay: str) -> Iterator[Change]:
        for site in self._search(source).before:
            yield from made(self.hunk, site, source, overlay)

    def _expression(self, hunk: Hunk, search: Search, source: Source, overlay: str) -> EditFinding | None:
        ours = [site for site in search.after if source.mark_of(site.spots[0].path, overlay)]
        after = ours or search.after
        if len(search.before) == self.count and not ours:
            if _doubles(hunk, search):
                return None
            return EditFinding(Found.BEFORE, regions=tuple(site.spots[0].path for site in search.before))
        # Without an entry, many a call looks as if it had gone.
        if search.before or len(after) != self.count or not (ours or not hunk.within or hunk.grows):
            return None
        paths = [site.spots[0].path for site in after]
        marked = frozenset(chain.from_iterable(source.mark_of(path, overlay) for path in paths))
        reads = _reads(*hunk.swap or (), within=hunk.within)
        landed = tuple(Landed(path, reads=reads, uses=self.uses) for path in paths)
        return EditFinding(Found.AFTER, marked=marked, regions=tuple(paths), landed=landed)

    def _statements(self, hunk: Hunk, search: Search, source: Source, overlay: str) -> EditFinding | None:
        if len(search.before) == self.count and not search.after:
            _refuse_half(hunk, search, source)
            _refuse_header(hunk, search)
            regions = tuple(sorted(path for site in search.before for path in _claims(hunk, site)))
            context = tuple(sorted(path for site in search.before for path in site.context(hunk)))
            return EditFinding(Found.BEFORE, regions=regions, context=context)
        if search.before:
            return None
        deleted = all(map(is_hole, hunk.after)) and bool(search.traces(overlay))
        if len(search.after) == self.count or deleted:
            found = self._landed(hunk, search, source, overlay)
            if found.marked or (search.after and hunk.telling):
                return found
        there = () if search.after else _arrived(hunk, search)
        return EditFinding(Found.AFTER, regions=there) if there else None

    def _landed(self, hunk: Hunk, search: Search, source: Source, overlay: str) -> EditFinding:
        landed: list[Landed] = []
        for item in hunk.every:
            for site in search.after:
                if item.old is None:
                    landed.append(Landed(site.path(item.new), uses=self.uses))
                elif item.changes:
                    header = has_block(item.new)
                    reads = None if header else _reads(item.old, item.new)
                    landed.append(Landed(site.path(item.new), reads=reads, header=header, uses=self.uses))
        marks = [source.mark_of(one.path, overlay) for one in landed]
        ours = frozenset(chain.from_iterable(marks)) if all(marks) else frozenset()
        regions = tuple(sorted(one.path for one in landed if not one.header))
        if hunk.deletes and (ours or not marks):
            ours |= search.traces(overlay)
            owners = {site.block.path for site in search.after} or {owner.path for owner in search.owners}
            landed += [Landed(path, reads=frozenset(), uses=self.uses) for path in sorted(owners) if path and ours]
        # As before the change, so that another overlay conflicts with this one in either order.
        context = tuple(sorted(path for site in search.after for path in _leans_on(hunk, site))) if ours else ()
        return EditFinding(Found.AFTER, marked=ours, regions=regions, context=context, landed=tuple(landed))


def _claims(hunk: Hunk, site: Match) -> Iterator[Path]:
    """Yield what a hunk changes: statements that go, headers, and the gaps into which code comes."""
    for block, went, gap, _ in places(hunk.items, site, site.block):
        yield from ((*block.path, (block.block, k)) for k in went)
        if not went:
            yield (*block.path, (f"gap in {block.block}", gap))
    yield from ((*site.path(item.old), ("header", -1)) for item in hunk.every if item.changes)


def _leans_on(hunk: Hunk, site: Match) -> Iterator[Path]:
    """Yield the context of a hunk whose change was made, the gaps into which code came, and the headers that changed.

    No statement of another overlay may come beside what came: which one is first would depend on the order.
    """
    yield from site.context(hunk, new=True)
    for item in hunk.inserted:
        *block, (name, k) = site.path(item.new)
        yield from ((*block, (f"gap in {name}", gap)) for gap in (k, k + 1))
    yield from ((*site.path(item.new), ("header", -1)) for item in hunk.every if item.changes)


def _refuse_half(hunk: Hunk, search: Search, source: Source) -> None:
    """Refuse if a statement that comes is there already, without a mark."""
    went = [site.path(item.old) for site in search.before for item in hunk.every if item.new is None]
    for spot in search.standing(hunk.coming, new=True):
        if not any(inside(spot.path, path) for path in went):
            line = source.line(spot.path)
            raise Lost(f"`{source.quoted(spot.node)}` is there already, line {line}; the rest of the change is not")


def _refuse_header(hunk: Hunk, search: Search) -> None:
    """Refuse if parameters that stay change places, or if a new one has no place in the function."""
    for item in (item for item in hunk.every if item.changes and isinstance(item.old, DEFINITIONS)):
        was, new = pieces_of(item.old), pieces_of(item.new)
        stay = [name for name in _parameters(new) if name in _parameters(was)]
        if stay != sorted(stay, key=_parameters(was).index):
            raise Lost("a hunk cannot change the order of parameters")
        keys = differing_pieces(item.old, item.new)
        for site in search.before:
            _refuse_parameters(pieces_of(site.bound[id(item.old)]), was, new, keys)


def _refuse_parameters(there: Pieces, was: Pieces, new: Pieces, keys: Sequence[str]) -> None:
    """Refuse what Python would not compile, or what would stand first for lack of the parameters before it."""
    order = _parameters(new)
    come = [key for key in new if " " in key and key not in was]
    known = {*_parameters(there), *map(_name, come)}
    for key in come:
        name = _name(key)
        above = order[: order.index(name)]
        if above and not known & {*above}:
            raise Lost(f"no parameter {above[-1]!r} to put {name!r} behind")
        if key not in there and name in _parameters(there):
            raise Lost(f"has a parameter {name!r} already, of another kind")
    positional = []
    for kind in ("posonly_params", "params"):
        mine = ([_name(key) for key in some if key.startswith(f"{kind} ")] for some in (there, new, keys))
        for key in (f"{kind} {name}" for name in placed(*mine)):
            _, default = (new if key in keys else there)[key]
            positional.append((_name(key), default is not None))
    for (first, optional), (second, default) in pairwise(positional):
        if optional and not default:
            raise Lost(f"parameter {second!r}, which has no default, would stand behind {first!r}, which has one")


def _parameters(keys: Iterable[str]) -> list[str]:
    return [_name(key) for key in keys if " " in key]


def _name(key: str) -> str:
    return key.partition(" ")[2]


def _doubles(hunk: Hunk, search: Search) -> bool:
    """Whether a call has the keyword that comes, with another value."""
    come = [one for one in changes(*hunk.swap) if one.kind == "come"] if hunk.swap and hunk.within else []
    return any(
        isinstance(one.new, ast.keyword) and any(there.arg == one.new.arg for there in site.bound[id(one.old)].keywords)
        for one in come
        for site in search.before
        if isinstance(one.old, ast.Call)
    )


def _arrived(hunk: Hunk, search: Search) -> tuple[Path, ...]:
    """Return where all that comes stands, if all that goes is gone: upstream made the change among other neighbours."""
    came, went = ([item for item in hunk.every if getattr(item, side) is None] for side in ("old", "new"))
    if not hunk.coming or any(item.changes for item in hunk.every) or any(search.standing(went, new=False)):
        return ()
    found = [{spot.path for spot in search.standing([item], new=True)} for item in came]
    return tuple(sorted(path for paths in found for path in paths)) if all(found) else ()


def _reads(old: Any, new: Any, *, within: bool = True) -> frozenset[Read]:
    """Collect the names that new code within a statement reads."""
    found = [change.new for change in changes(old, new) if change.new is not None] if within else [new]
    nodes = [node for one in found for node in (one if isinstance(one, tuple) else [one]) if node is not None]
    bare = [node.value if isinstance(node, ast.keyword | ast.Starred) else node for node in nodes]
    bare = [node for node in bare if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))]
    names = frozenset(name for node in bare for name in names_read_by(ast.unparse(node)))
    return frozenset(name for name in names if not name.name.startswith(META))
