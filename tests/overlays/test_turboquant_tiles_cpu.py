"""turboquant-tiles in the real vLLM, on the CPU: what attention computes, and how much memory it takes.

On each release the tests compare the tree as published with the patched one. The kernels are vLLM's own, run by
Triton's interpreter; PyTorch stands in for flash attention.
"""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections.abc import Callable
from functools import cache

import pytest
from packaging.version import Version

from tests import releases
from tests.tiers import deep, sampled
from tests.validation.cpu.comparison import Comparison, compared, each, one_first
from tests.validation.cpu.probe_tiles import CASES, FIRST, MAX_MODEL_LEN, MEASURED_TILE, PEAKS

MORE = [name for name in CASES if name not in FIRST]
DECODE = {"35B": 64 * 16 * (32 * 257 * 4 + 256 * 2 + 4), "decode is more": 1024 * 16 * (32 * 257 * 4 + 256 * 2 + 4)}


PENDING = [release for release in releases.pending("turboquant-tiles") if release in releases.SHAPES]
release = each(one_first("0.26.0", PENDING))


@pytest.fixture(scope="module")
def some(release: str, folder: str) -> Callable[..., Comparison]:
    """`some(*names)`: what the probe finds in these cases, or without names in all that is not of a case."""
    own = ("turboquant-workspace",) if Version(release) < Version("0.24") else ()
    return cache(lambda *names: compared("probe_tiles", release, ("turboquant-tiles", *own), folder, *names))


measured = pytest.mark.parametrize("release", [deep(one) for one in sampled(PENDING, 3)], indirect=True, scope="module")
"""Marks the tests of what `seen` has. The interpreter takes long for contexts in which memory would show, so that these
run on one release for each shape only."""


@pytest.fixture(scope="module")
def seen(some: Callable[..., Comparison]) -> Comparison:
    return some()


@pytest.mark.parametrize("name", FIRST)
def test_attention_is_that_of_stock(some: Callable[..., Comparison], name: str) -> None:
    check(some(*FIRST), name)


@measured
@pytest.mark.parametrize("name", MORE)
def test_attention_is_that_of_stock_in_more_cases(some: Callable[..., Comparison], name: str) -> None:
    check(some(*MORE), name)


def check(compared: Comparison, name: str) -> None:
    stock, tiled = (array("f", b64decode(found["outputs"][name])) for found in compared)

    assert len(stock) == len(tiled) == CASES[name].chunk * CASES[name].heads[0] * CASES[name].head_size
    assert max(map(abs, stock)) > 0.1
    assert all(abs(a - b) <= 2e-3 for a, b in zip(stock, tiled, strict=True))  # false for NaN


@measured
def test_memory_does_not_grow_with_the_context(seen: Comparison) -> None:
    stock, tiled = ([found["peaks"][str(cached)] for cached in PEAKS] for found in seen)

    assert stock[-1] > 1.4 * stock[0]
    assert max(tiled) <= 1.05 * tiled[0]


@measured
def test_memory_profiling_counts_a_continuation(seen: Comparison) -> None:
    assert max(seen.stock["peaks"][str(cached)] for cached in PEAKS) > 0 == seen.stock["peaks"]["counted"]
    peaks = seen.patched["peaks"]
    assert max(peaks[str(cached)] for cached in PEAKS) < peaks["beside a decode"]
    assert peaks["beside a decode"] <= peaks["counted"] <= 1.05 * peaks["beside a decode"]


@measured
def test_nothing_is_rehearsed_once_the_cache_exists(seen: Comparison) -> None:
    assert seen.patched["peaks"]["idle"] == seen.stock["peaks"]["idle"] == 0


@measured
def test_the_profiling_pass_returns_the_same_output(seen: Comparison) -> None:
    assert seen.stock["zeros"] == seen.patched["zeros"] == [True, True]


@measured
def test_decode_takes_its_part_of_the_workspace_before_the_cache_is_sized(seen: Comparison, release: str) -> None:
    assert seen.stock["workspace"] == 0
    assert bool(seen.patched["workspace"]) == (Version(release) >= Version("0.21"))  # before, each layer has buffers


@measured
def test_the_workspace_reserves_nothing_for_the_context(seen: Comparison, release: str) -> None:
    assert seen.patched["reserved"] == DECODE
    if Version(release) >= Version("0.24"):
        assert seen.stock["reserved"]["35B"] > 15 * DECODE["35B"]


def test_the_longest_case_is_the_longest_there_can_be() -> None:
    assert max(case.cached + case.chunk for case in CASES.values()) == MAX_MODEL_LEN == PEAKS[-1] + MEASURED_TILE
