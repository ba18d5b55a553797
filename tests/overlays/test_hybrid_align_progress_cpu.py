"""Chunks of prompts with hybrid-align-progress, by each release's own split and scheduler."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, compared, each

pytestmark = pytest.mark.deep
release = each(sampled(("0.20.2", "0.24.0", "0.26.0", "0.29.0", "0.33.0"), 2))


@pytest.fixture(scope="module")
def seen(release: str) -> Comparison:
    return compared("probe_progress", release, ("hybrid-align-progress",), ready="bare")


def last_saved(case: dict[str, Any]) -> int:
    """Return the last position of a prompt whose state is saved: with drafts, one block before the last."""
    aligned = case["prompt"] // case["block"] * case["block"]
    return int(max(aligned - (case["block"] if case["drafts"] else 0), 0))


def right(start: int, end: int, case: dict[str, Any]) -> bool:
    """Whether a chunk leaves no state within a block where that of the block's end belongs."""
    block = case["block"]
    if start >= last_saved(case):
        return True  # as upstream has it
    within, aligned = start // block == end // block, start % block == 0
    return bool(within or end == case["prompt"] or (end % block == 0 and (aligned or end - start < block)))


def test_where_stock_goes_on_nothing_changes(seen: Comparison) -> None:
    pairs = list(zip(seen.stock["single"], seen.patched["single"], strict=True))
    more = 0
    for stock, patched in pairs:
        start, end = stock["start"], stock["end"]
        assert patched["end"] >= start
        assert patched["end"] == end or end == start or not right(start, end, stock)
        assert right(start, patched["end"], patched)
        more += end == start < patched["end"]
    assert more > len(pairs) / 20


def test_every_prompt_ends_and_saves_states_of_whole_blocks(seen: Comparison) -> None:
    for case in seen.patched["whole"]:
        assert case["ends"][-1] == case["prompt"]
        assert all(right(*chunk, case) for chunk in pairwise((0, *case["ends"])))
    assert sum(case["ends"][-1] < case["prompt"] for case in seen.stock["whole"]) > 50


def test_the_real_scheduler_finishes_a_prompt_and_finds_it_again(seen: Comparison) -> None:
    assert set(seen.stock["real"]["long"]) == {0}
    assert seen.patched["real"]["long"][:10] == [62, 2, 62, 2, 62, 2, 62, 2, 44, 1]
    assert seen.patched["real"]["again"][0] == 44  # of 300 tokens, four blocks of 64 are in the cache
