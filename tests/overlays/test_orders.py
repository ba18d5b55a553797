"""Overlays give the same bytes in any order, and together; and some overlays are applied only when they are named."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import State
from vpatch.tree.locate import locate

from tests.engines import engine_of, over, together
from tests.releases import FACTS, SHAPES, fact, shown, tree_of
from tests.tiers import deep

ITEMS = [item for item in discover() if item.id in FACTS]
TURBOQUANT = tuple(f"turboquant-{name}" for name in ("hybrid", "workspace", "skip-list", "auto-dtype", "tiles", "mtp"))
Pair = tuple[Catalogued, Catalogued]


def pairs(release: str) -> Iterator[Pair]:
    """Yield pending overlays of which one changes a file that the other reads; others cannot affect each other."""
    pending = [item for item in ITEMS if shown(item.id, release) == State.PENDING]
    for one, other in combinations(pending, 2):
        changed = [set(item.overlay.files) for item in (one, other)]
        read = [set(engine_of([item]).files) for item in (one, other)]
        if changed[0] & read[1] or changed[1] & read[0]:
            yield one, other


@pytest.mark.deep
@pytest.mark.parametrize("release", SHAPES)
def test_two_overlays_give_the_same_bytes_in_either_order(release: str) -> None:
    """More than two follow from that: an edit finds its code by what other overlays leave alone."""
    read = cache(locate(tree_of(release)).read)
    found = list(pairs(release))
    assert found or release < "0.20"

    for one, other in found:
        both = together(read, (one.id, other.id))
        for order in ((one, other), (other, one)):
            in_turn = together(read, *((item.id,) for item in order))
            assert in_turn == both, f"{order[0].id}, then {order[1].id}"
        states = engine_of(discover()).status(over(both, read), (one, other))
        assert [verdict.state for verdict in states] == [State.APPLIED] * 2


@pytest.mark.parametrize("release", ["0.20.2", deep("0.21.0"), deep("0.26.0")])
def test_overlays_that_change_the_same_functions_give_the_same_bytes_in_any_order(release: str) -> None:
    """Also turboquant-decode, first, last, and among all."""
    read = cache(locate(tree_of(release)).read)
    order = [name for name in ("turboquant-decode", *TURBOQUANT) if fact(name, release) == "pending"]
    assert len(order) >= 4
    made = together(read, order)

    assert together(read, *((name,) for name in order)) == made
    assert together(read, *((name,) for name in reversed(order))) == made


def test_what_goes_beyond_upstream_is_applied_only_when_it_is_named() -> None:
    assert FACTS.keys() - {item.id for item in select(discover())} == {
        "compile-cache-key",
        "qwen-parser-text",
        "receipt",
        "turboquant-decode",
        "turboquant-tiles",
    }
