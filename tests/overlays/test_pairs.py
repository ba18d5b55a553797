"""Any two overlays give the same bytes in either order, and together, on every release where both are pending.

More than two follow from that: an edit finds its code by what other overlays leave alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations

import pytest
from vpatch.core.catalogue import discover
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import State
from vpatch.tree.locate import locate

from tests.engines import engine_of, over, together
from tests.releases import FACTS, SHAPES, shown, tiered, tree_of

ITEMS = [item for item in discover() if item.id in FACTS]
Pair = tuple[Catalogued, Catalogued]


def pairs(release: str) -> Iterator[Pair]:
    """Yield pending overlays of which one changes a file that the other reads; others cannot affect each other."""
    pending = [item for item in ITEMS if shown(item.id, release) == State.PENDING]
    for one, other in combinations(pending, 2):
        changed = [set(item.overlay.files) for item in (one, other)]
        read = [set(engine_of([item]).files) for item in (one, other)]
        if changed[0] & read[1] or changed[1] & read[0]:
            yield one, other


@pytest.mark.parametrize("release", tiered(SHAPES, ["0.20.2"]))
def test_two_overlays_give_the_same_bytes_in_either_order(release: str) -> None:
    read = cache(locate(tree_of(release)).read)

    for one, other in pairs(release):
        both = together(read, (one.id, other.id))
        for order in ((one, other), (other, one)):
            in_turn = together(read, *((item.id,) for item in order))
            assert in_turn == both, f"{order[0].id}, then {order[1].id}"
        states = engine_of(discover()).status(over(both, read), (one, other))
        assert [verdict.state for verdict in states] == [State.APPLIED] * 2


@pytest.mark.parametrize("release", ["0.20.2", "0.21.0", "0.26.0"])
def test_there_are_pairs_to_look_at(release: str) -> None:
    assert list(pairs(release))
