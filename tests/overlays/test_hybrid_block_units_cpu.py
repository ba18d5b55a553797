"""Chunks of prompts, and columns of states, with hybrid-block-units and blocks of two sizes."""

from __future__ import annotations

import pytest

from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, compared, each

pytestmark = pytest.mark.deep
release = each(sampled(("0.24.0", "0.26.0", "0.31.0", "0.33.0"), 2))


@pytest.fixture(scope="module")
def seen(release: str) -> Comparison:
    return compared("probe_units", release, ("hybrid-block-units",), ready="bare")


def test_a_smaller_block_of_another_layer_does_not_matter(seen: Comparison) -> None:
    for what in ("chunks", "columns"):
        alike = seen.patched[what]["alike"]
        assert seen.patched[what]["smaller"] == alike == seen.stock[what]["alike"], "and where all are alike, nothing"
    assert seen.stock["chunks"]["smaller"] != seen.stock["chunks"]["alike"]


def test_the_column_of_stock(seen: Comparison, release: str) -> None:
    defect = {"0.26.0", "0.31.0"}
    assert (seen.stock["columns"]["smaller"] != seen.stock["columns"]["alike"]) is (release in defect)
