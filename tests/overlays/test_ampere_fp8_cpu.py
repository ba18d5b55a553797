"""The kernel that each release chooses for FP8 with ampere-fp8, on GPUs with and without FP8 of their own."""

from __future__ import annotations

import pytest
from vpatch_overlays.probes.ampere_fp8 import CUTLASS, MARLIN

from tests.releases import tree_of
from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, compared, each, ran

pytestmark = pytest.mark.deep
release = each(sampled(("0.29.0", "0.30.0"), 2))

OLDER = ("7.5", "8.0", "8.6", "8.7")


@pytest.fixture(scope="module")
def seen(release: str) -> Comparison:
    return compared("probe_ampere_fp8", release, ("ampere-fp8",), ready="bare")


def test_stock_takes_cutlass_where_it_has_no_kernels(seen: Comparison) -> None:
    assert set(seen.stock.values()) == {CUTLASS}


def test_patched_takes_marlin_there_and_nothing_else_changes(seen: Comparison) -> None:
    assert seen.patched == {name: MARLIN if name.startswith(OLDER) else CUTLASS for name in seen.stock}


def test_later_releases_do_the_same(seen: Comparison) -> None:
    assert seen.patched == ran("probe_ampere_fp8", "0.31.0", tree_of("0.31.0"), ready="bare")
