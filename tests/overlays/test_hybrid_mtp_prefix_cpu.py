"""Prefix-cache hits with hybrid-mtp-prefix, by each release's own coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from vpatch_overlays.probes.hybrid_mtp_prefix import BLOCK

from tests.releases import tree_of
from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, compared, each, ran

NAME = "hybrid-mtp-prefix"
RIGHT = ("0.18.0", "0.26.0", "0.33.0")

# What the coordinator finds for the layouts of `probe_prefix.TABLE`: blocks of attention and Mamba, and tokens.
COVERED = {"beyond": [[0, 0], 0], "usable": [[2, 2], 2 * BLOCK]}
BEYOND = {"beyond": [[2, 3], 3 * BLOCK], "usable": [[2, 3], 3 * BLOCK]}

Hits = Sequence[tuple[int, list[int], int]]

pytestmark = pytest.mark.deep
release = each(sampled(("0.20.2", "0.21.0", "0.25.1"), 2))


@pytest.fixture(scope="module")
def seen(release: str) -> Comparison:
    return compared("probe_prefix", release, (NAME,), ready="bare")


def beyond(hits: Hits) -> int:
    """Return how many hits are longer than the pages of every group of attention."""
    return sum(tokens > BLOCK * min(blocks[:attention]) for attention, blocks, tokens in hits)


@cache
def stock(release: str) -> dict[str, Any]:
    return ran("probe_prefix", release, tree_of(release), ready="bare")


def table(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in COVERED}


def test_no_layout_of_blocks_has_a_hit_beyond_attention(seen: Comparison) -> None:
    assert (table(seen.stock), table(seen.patched)) == (BEYOND, COVERED)
    assert beyond(seen.stock["speculating"]) > 100
    assert beyond(seen.patched["speculating"]) == 0
    assert seen.patched["speculating"] == stock("0.26.0")["speculating"]  # which has the change


def test_without_speculation_nothing_changes(seen: Comparison) -> None:
    assert seen.patched["plain"] == seen.stock["plain"]
    assert beyond(seen.stock["plain"]) == 0


@pytest.mark.parametrize("other", RIGHT)
def test_other_releases_are_right(other: str) -> None:
    assert table(stock(other)) == COVERED
    assert beyond(stock(other)["speculating"]) == 0
