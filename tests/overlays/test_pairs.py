"""Any two overlays give the same bytes in either order, and together, on every release where both are pending.

More than two follow from that: an edit finds its code by what other overlays leave alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine, Read
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import State

from tests.engines import engine_of
from tests.releases import FACTS, RELEASES, shown, tiered, tree_of

ITEMS = [item for item in discover() if item.id in FACTS]
Pair = tuple[Catalogued, Catalogued]


def reader(tree: Path) -> Read:
    @cache
    def read(file: str) -> bytes | None:
        path = tree / file
        return path.read_bytes() if path.is_file() else None

    return read


def over(changes: Mapping[str, bytes], read: Read) -> Read:
    return lambda file: changes[file] if file in changes else read(file)


def pairs(release: str) -> Iterator[Pair]:
    """Yield pending overlays of which one changes a file that the other reads; others cannot affect each other."""
    pending = [item for item in ITEMS if shown(item.id, release) == State.PENDING]
    for one, other in combinations(pending, 2):
        changed = [{file for part in item.overlay.parts for file in part.files} for item in (one, other)]
        read = [set(engine_of([item]).files) for item in (one, other)]
        if changed[0] & read[1] or changed[1] & read[0]:
            yield one, other


def in_turn(engine: Engine, order: Pair, read: Read) -> Mapping[str, bytes]:
    """Return the files that two overlays change, one after the other."""
    first = engine.plan(read, order[:1])
    second = engine.plan(over(first.files, read), order[1:])
    assert (first.problems, second.problems) == ((), ())
    assert first.files
    assert second.files
    return {**first.files, **second.files}


@pytest.mark.parametrize("release", tiered(RELEASES))
def test_two_overlays_give_the_same_bytes_in_either_order(release: str) -> None:
    engine, read = engine_of(ITEMS), reader(tree_of(release))

    for one, other in pairs(release):
        together = engine.plan(read, (one, other))
        assert not together.problems
        for order in ((one, other), (other, one)):
            assert in_turn(engine, order, read) == together.files, f"{order[0].id}, then {order[1].id}"
        states = engine.status(over(together.files, read), (one, other))
        assert [verdict.state for verdict in states] == [State.APPLIED] * 2


@pytest.mark.parametrize("release", ["0.20.2", "0.21.0", "0.26.0"])
def test_there_are_pairs_to_look_at(release: str) -> None:
    assert list(pairs(release))
