"""One list of what an overlay takes from vLLM, out of what was recorded on several releases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from vpatch.calls.record import Recording
from vpatch.core.calls import Call, Calls, Taken, combined
from vpatch.core.engine import Read
from vpatch.core.landing.fit import questions
from vpatch.core.landing.lookup import Lookup
from vpatch.core.workspace import Workspace


def merged(overlay: str, recorded: Mapping[str, Recording], trees: Mapping[str, Read]) -> Calls:
    """Merge what an overlay takes on releases, the newest last; `trees` read their files.

    A call is optional if a release with the same code lacks its definition. An attribute is only recorded if all
    releases with the code set it, and so are imports.
    """
    by_key: dict[str, list[Taken]] = {}
    releases = []
    for release, one in recorded.items():
        mine = {key: taken for (of, key), taken in one.code.items() if of == overlay}
        releases += [release] if mine else []
        for key, taken in mine.items():
            by_key.setdefault(key, []).append(taken)
    code = {key: _merged(each) for key, each in by_key.items()}
    through, known = _ways(code.values(), [Workspace(trees[release]) for release in releases])
    return Calls(tuple(releases), through, known, code)


def _ways(
    code: Iterable[Taken], trees: Sequence[Workspace]
) -> tuple[dict[str, tuple[str, ...]], dict[tuple[str, ...], tuple[str, ...]]]:
    """Return `through` and `known` of a list.

    Only trees count on which all that is taken fits: on others, nothing is to be left out.
    """
    through: dict[str, tuple[str, ...]] = {}
    known: dict[tuple[str, ...], tuple[str, ...]] = {}
    asked = defaultdict(list)
    for piece in code:
        for taken, compare in questions(piece, ""):
            asked[taken].append(compare)
    for taken, comparisons in asked.items():
        fits: list[Workspace] = []
        read: set[str] = set()
        for tree in trees:
            with tree.noting() as seen:
                found = [compare(Lookup(tree)) for compare in comparisons]
            read |= seen
            if not any(map(any, found)):
                fits.append(tree)
        way = tuple(sorted(file for file in read if any(tree.original(file) is not None for tree in trees)))
        if way != (taken.partition(" ")[0],):
            through[taken] = way
        digests = {combined(way, tree.digest) for tree in fits}
        known[way] = tuple(sorted({*known.get(way, digests)} & digests))
    return through, known


def _merged(taken: Sequence[Taken]) -> Taken:
    return Taken(
        taken[-1].digest,
        _calls([each.calls for each in taken]),
        _calls([each.overrides for each in taken]),
        _reads([each.reads for each in taken]),
        tuple(sorted(set.intersection(*(set(each.imports) for each in taken)))),
    )


def _calls(found: Sequence[Mapping[str, Call]]) -> dict[str, Call]:
    """Merge the calls of the same code; places with one name, of which each release has one, are the same callee."""
    names = {place.partition(" ")[2]: None for each in found for place in each}
    calls = {}
    for name in names:
        places = list(dict.fromkeys(p for each in reversed(found) for p in each if p.partition(" ")[2] == name))
        moved = all(sum(place in each for place in places) <= 1 for each in found)
        for newest, *older in [places] if moved else [[place] for place in places]:
            known = [each[place] for each in found for place in (newest, *older) if place in each]
            calls[newest] = _call(known, older, optional=len(known) < len(found))
    return calls


def _call(known: Sequence[Call], at: Sequence[str], *, optional: bool) -> Call:
    interfaces: dict[str, set[str]] = {}
    for each in known:
        for interface, bodies in each.interfaces.items():
            interfaces.setdefault(interface, set()).update(bodies)
    given = tuple(sorted({given for each in known for given in each.given}))
    digests = {interface: tuple(sorted(bodies)) for interface, bodies in interfaces.items()}
    return Call(given, digests, tuple(at), all(each.ignored for each in known), optional)


def _reads(found: Sequence[Mapping[str, Iterable[str]]]) -> dict[str, tuple[str, ...]]:
    owners = dict.fromkeys(owner for each in found for owner in each)
    common = {owner: set.intersection(*(set(each.get(owner, ())) for each in found)) for owner in owners}
    return {owner: tuple(sorted(names)) for owner, names in common.items() if names}
