"""turboquant-tiles in the real vLLM, on the CPU: what attention computes, and how much memory it takes.

On each release the tests compare the tree as published with the patched one. The kernels are vLLM's own, run by
Triton's interpreter; PyTorch stands in for flash attention.
"""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.version import Version

from tests.releases import pending
from tests.validation.cpu import models
from tests.validation.cpu.environment import interpreter, probe
from tests.validation.cpu.probe_tiles import CASES, MAX_MODEL_LEN, PEAKS, TILE
from tests.validation.cpu.table import RELEASES

Trees = Callable[..., Path]

DEFAULT = RELEASES[-1:]
DECODE = {"35B": 64 * 16 * (32 * 257 * 4 + 256 * 2 + 4), "decode is more": 1024 * 16 * (32 * 257 * 4 + 256 * 2 + 4)}


class Comparison(NamedTuple):
    """One result in a tree as published, and in the patched one."""

    stock: Any
    patched: Any


@pytest.fixture(
    scope="module",
    params=[
        *DEFAULT,
        *(pytest.param(v, marks=pytest.mark.matrix) for v in pending("turboquant-tiles") if v not in DEFAULT),
    ],
)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def seen(release: str, pristine: Trees, patched: Trees, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = models.write(tmp_path_factory.mktemp("models"))
    own = ("turboquant-workspace",) if Version(release) < Version("0.24") else ()

    def look(tree: Path) -> dict[str, Any]:
        return probe(interpreter(release), "probe_tiles", tree, tmp_path_factory.mktemp("home"), str(folder))

    with ThreadPoolExecutor(max_workers=2) as pool:
        return Comparison(*pool.map(look, (pristine(release), patched(release, "turboquant-tiles", *own))))


@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_stock(seen: Comparison, name: str) -> None:
    stock, tiled = (array("f", b64decode(found["outputs"][name])) for found in seen)

    assert len(stock) == len(tiled) == CASES[name].chunk * CASES[name].heads[0] * CASES[name].head_size
    assert max(map(abs, stock)) > 0.1
    assert all(abs(a - b) <= 2e-3 for a, b in zip(stock, tiled, strict=True))  # false for NaN


def test_memory_does_not_grow_with_the_context(seen: Comparison) -> None:
    stock, tiled = ([found["peaks"][str(cached)] for cached in PEAKS] for found in seen)

    assert stock[-1] > 1.4 * stock[0]
    assert max(tiled) <= 1.05 * tiled[0]


def test_memory_profiling_counts_a_continuation(seen: Comparison) -> None:
    assert max(seen.stock["peaks"][str(cached)] for cached in PEAKS) > 0 == seen.stock["peaks"]["counted"]
    peaks = seen.patched["peaks"]
    assert max(peaks[str(cached)] for cached in PEAKS) < peaks["beside a decode"]
    assert peaks["beside a decode"] <= peaks["counted"] <= 1.05 * peaks["beside a decode"]


def test_nothing_is_rehearsed_once_the_cache_exists(seen: Comparison) -> None:
    assert seen.patched["peaks"]["idle"] == seen.stock["peaks"]["idle"] == 0


def test_the_profiling_pass_returns_the_same_output(seen: Comparison) -> None:
    assert seen.stock["zeros"] == seen.patched["zeros"] == [True, True]


def test_decode_takes_its_part_of_the_workspace_before_the_cache_is_sized(seen: Comparison, release: str) -> None:
    assert seen.stock["workspace"] == 0
    assert bool(seen.patched["workspace"]) == (Version(release) >= Version("0.21"))  # before, each layer has buffers


def test_the_workspace_reserves_nothing_for_the_context(seen: Comparison, release: str) -> None:
    assert seen.patched["reserved"] == DECODE
    if Version(release) >= Version("0.24"):
        assert seen.stock["reserved"]["35B"] > 15 * DECODE["35B"]


def test_the_longest_case_is_the_longest_there_can_be() -> None:
    assert max(case.cached + case.chunk for case in CASES.values()) == MAX_MODEL_LEN == PEAKS[-1] + TILE
