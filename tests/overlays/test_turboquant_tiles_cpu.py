"""turboquant-tiles in the real vLLM, on the CPU: what attention computes, and how much memory it takes.

On each release the tests compare the tree as published with the patched one. The kernels are vLLM's own, run by
Triton's interpreter; PyTorch stands in for flash attention.
"""

from __future__ import annotations

from array import array
from base64 import b64decode

import pytest
from packaging.version import Version

from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, compared, each
from tests.validation.cpu.probe_tiles import CASES, MAX_MODEL_LEN, MEASURED_TILE, PEAKS

pytestmark = pytest.mark.deep

DECODE = {"35B": 64 * 16 * (32 * 257 * 4 + 256 * 2 + 4), "decode is more": 1024 * 16 * (32 * 257 * 4 + 256 * 2 + 4)}

release = each(sampled(("0.33.0", "0.21.0", "0.26.0", "0.20.2", "0.31.0"), 3))


@pytest.fixture(scope="module")
def seen(release: str, folder: str) -> Comparison:
    return compared("probe_tiles", release, ("turboquant-tiles", "turboquant-workspace"), folder)


@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_stock(seen: Comparison, name: str) -> None:
    stock, tiled = (array("f", b64decode(found["outputs"][name])) for found in seen)

    assert len(stock) == len(tiled) == CASES[name].chunk * CASES[name].heads[0] * CASES[name].head_size
    assert max(map(abs, stock)) > 0.1
    assert all(abs(a - b) <= 2e-3 for a, b in zip(stock, tiled, strict=True))  # false for NaN


def test_memory_does_not_grow_with_the_context_and_profiling_counts_it(seen: Comparison) -> None:
    stock, tiled = (found["peaks"] for found in seen)
    before, after = ([peaks[str(cached)] for cached in PEAKS] for peaks in (stock, tiled))

    assert before[-1] > 1.4 * before[0]
    assert max(after) <= 1.05 * after[0]
    assert max(before) > 0 == stock["counted"]
    assert max(after) < tiled["beside a decode"] <= tiled["counted"] <= 1.05 * tiled["beside a decode"]
    assert tiled["idle"] == stock["idle"] == 0  # nothing is rehearsed once the cache exists
    assert seen.stock["zeros"] == seen.patched["zeros"] == [True, True]


def test_the_workspace_reserves_decodes_part_before_the_cache_is_sized_and_nothing_for_the_context(
    seen: Comparison, release: str
) -> None:
    assert seen.stock["workspace"] == 0
    assert bool(seen.patched["workspace"]) == (Version(release) >= Version("0.21"))  # before, each layer has buffers
    assert seen.patched["reserved"] == DECODE
    if Version(release) >= Version("0.24"):
        assert seen.stock["reserved"]["35B"] > 15 * DECODE["35B"]


def test_the_longest_case_is_the_longest_there_can_be() -> None:
    assert max(case.cached + case.chunk for case in CASES.values()) == MAX_MODEL_LEN == PEAKS[-1] + MEASURED_TILE
