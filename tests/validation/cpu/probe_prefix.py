"""The prefix-cache hits that a release's own coordinator finds."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

from vpatch_overlays.probes.hybrid_mtp_prefix import BLOCKS, Cached, groups, hit

KINDS = ((2, 1), (1, 2), (2, 2), (1, 3))
"""Numbers of groups of attention and of Mamba layers, beside one of each."""
DRAWS = 250


def layouts() -> Iterator[tuple[int, Cached]]:
    """Yield numbers of attention groups, with the blocks that are cached for each group.

    With one group of each kind, these are all prefixes of attention with all sets of states. The others are drawn.
    """
    for length in range(BLOCKS):
        for count in range(4):
            for ends in combinations(range(BLOCKS - 1), count):
                yield 1, (range(length), ends)
    rng = random.Random(20)  # noqa: S311 - it is to be repeatable
    for attention, states in KINDS:
        for _ in range(DRAWS):
            some: list[Iterable[int]] = [range(rng.randrange(BLOCKS)) for _ in range(attention)]
            more = [[block for block in range(BLOCKS) if rng.random() < 0.5] for _ in range(states)]
            yield attention, [*some, *more]


def main(_home: str) -> dict[str, Any]:
    return {
        name: [
            (attention, *hit(groups(attention, len(cached) - attention), cached, speculates=speculates))
            for attention, cached in layouts()
        ]
        for name, speculates in (("speculating", True), ("plain", False))
    }
