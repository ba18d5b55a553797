"""Prefix-cache hits with hybrid-mtp-prefix, by each release's own coordinator."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from vpatch_overlays.probes.hybrid_mtp_prefix import BLOCK

from tests.releases import tree_of
from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, compared, each, ran

NAME = "hybrid-mtp-prefix"

Hits = Sequence[tuple[int, list[int], int]]

pytestmark = pytest.mark.deep
release = each(sampled(("0.20.2", "0.21.0", "0.25.1"), 2))


@pytest.fixture(scope="module")
def seen(release: str) -> Comparison:
    return compared("probe_prefix", release, (NAME,), ready="bare")


def beyond(hits: Hits) -> int:
    """Return how many hits are longer than the pages of every group of attention."""
    return sum(tokens > BLOCK * min(blocks[:attention]) for attention, blocks, tokens in hits)


def test_no_layout_of_blocks_has_a_hit_beyond_attention(seen: Comparison) -> None:
    assert beyond(seen.stock["speculating"]) > 100
    assert beyond(seen.patched["speculating"]) == 0
    fixed = ran("probe_prefix", "0.26.0", tree_of("0.26.0"), ready="bare")  # which has the change
    assert seen.patched["speculating"] == fixed["speculating"]


def test_without_speculation_nothing_changes(seen: Comparison) -> None:
    assert seen.patched["plain"] == seen.stock["plain"]
    assert beyond(seen.stock["plain"]) == 0
