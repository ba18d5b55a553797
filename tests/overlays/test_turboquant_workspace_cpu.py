"""turboquant-workspace in the real vLLM, on the CPU: what is reserved, and what attention computes.

On each release the tests compare the tree as published with the patched one. The kernels are vLLM's own, run by
Triton's interpreter.
"""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.releases import pending, tree_of, with_own_turboquant
from tests.tiers import deep, sampled
from tests.validation.cpu import upstream
from tests.validation.cpu.comparison import Comparison, compared, each, one_first, ran
from tests.validation.cpu.environment import interpreter
from tests.validation.cpu.probe_workspace import FIRST, RESERVED, RUNS
from tests.validation.cpu.trees import patched_tree

MORE = tuple(name for name in RUNS if name not in FIRST)

MIB = 1 << 20
BYTES = {
    "35B": 512 * MIB,
    "35B TP2": 256 * MIB,
    "35B TP4": 256 * MIB,  # each rank has two KV heads
    "27B": 1024 * MIB,
    "27B TP2": 512 * MIB,
    "27B TP4": 256 * MIB,
    "cache's block": 2 * 2 * 64 * 4096 * 256 * 2,
    "1 tokens": 16 * 32 * 129 * 4 + 16 * 128 * 2 + 256,  # 16 * 4 bytes, rounded up to 256
    "1001 tokens": 2 * 8 * 1008 * 128 * 2,
    "1009 tokens": 2 * 8 * 1008 * 128 * 2,
    "1010 tokens": 2 * 8 * 1024 * 128 * 2,
    "decode is more": 1024 * 16 * (32 * 257 * 4 + 256 * 2 + 4),
    "chunks of 128": 64 * 16 * (32 * 257 * 4 + 256 * 2 + 4),
    "chunks of 129": 512 * MIB,
    "no chunks": 64 * 16 * (32 * 257 * 4 + 256 * 2 + 4),
}
LOCKED = "Workspace is locked but allocation from 'turboquant_attn.py:"

# Cases that the reservation does not cover, not even in 0.24: there they find the workspace locked.
UNRESERVED = {"no chunks", "second micro-batch"}

UPSTREAM_TESTS = "tests/quantization/test_turboquant.py"
ON_GPU = 17
RESERVATION = {
    "test_metadata_builder_reserves_decode_and_continuation_prefill_workspace",
    "test_metadata_builder_skips_continuation_prefill_when_disabled",
}


release = each(one_first("0.20.2", sampled(with_own_turboquant(pending("turboquant-workspace"))[1:], 2)))


@pytest.fixture(scope="module")
def some(release: str, folder: str) -> Callable[..., Comparison]:
    """`some(*names)`: what the probe finds in these runs, or without names the reserved bytes."""
    return cache(lambda *names: compared("probe_workspace", release, ("turboquant-workspace",), folder, *names))


@pytest.fixture(scope="module", params=[FIRST, deep(MORE)], ids=["first", "more"])
def runs(request: pytest.FixtureRequest, some: Callable[..., Comparison]) -> Comparison:
    return Comparison(*(found["runs"] for found in some(*request.param)))


def grows(release: str) -> bool:
    """Whether a release keeps buffers in each layer instead of sharing the workspace."""
    return release.startswith("0.20.")


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_bytes(some: Callable[..., Comparison], name: str) -> None:
    assert some().stock["reserved"][name] == 0
    assert some().patched["reserved"][name] == BYTES[name]


@pytest.mark.deep
def test_upstream_reserves_the_same_and_misses_the_same_cases(folder: str) -> None:
    found = ran("probe_workspace", "0.24.0", tree_of("0.24.0"), folder, *RUNS)

    assert ran("probe_workspace", "0.24.0", tree_of("0.24.0"), folder)["reserved"] == BYTES
    assert {name for name, run in found["runs"].items() if run["errors"]} == UNRESERVED


def test_stock_fails_on_the_locked_workspace_or_grows(runs: Comparison, release: str) -> None:
    for name, stock in runs.stock.items():
        if not grows(release):
            assert stock["errors"], name
            assert all(error.startswith(LOCKED) for error in stock["errors"]), name
        elif name != "decode":
            added = stock["buffers"][-1].keys() - stock["buffers"][0].keys()
            assert added == {"_tq_k_dequant_buf", "_tq_v_dequant_buf"}, name


def test_patched_neither_fails_nor_grows(runs: Comparison) -> None:
    for name, patched in runs.patched.items():
        assert patched["errors"] == [], name
        assert patched["left"] == patched["reserved"] > 0, name
        assert all(buffers == patched["buffers"][0] for buffers in patched["buffers"]), name


def test_attention_is_that_of_stock(runs: Comparison) -> None:
    assert runs.stock.keys() == runs.patched.keys()
    for name in runs.stock:
        stock, patched = ([floats(output) for output in found[name]["outputs"]] for found in runs)

        assert len(stock) == len(patched) == len(RUNS[name].steps), name
        for one, other in zip(stock, patched, strict=True):
            assert any(one), name
            assert all(abs(a - b) <= 1e-3 for a, b in zip(one, other, strict=True)), name  # false for NaN


def test_every_other_case_fits_in_the_reservation(runs: Comparison) -> None:
    assert {name for name, found in runs.patched.items() if found["told"]} == UNRESERVED & runs.patched.keys()


@pytest.mark.deep
def test_upstreams_own_tests(release: str, tmp_path: Path) -> None:
    """The tests of 0.24.0 are those of 0.21.0 and two of the reservation. On 0.20 they also need turboquant-hybrid."""
    file = upstream.fetch("0.24.0", UPSTREAM_TESTS)
    before = patched_tree(release, "turboquant-hybrid") if grows(release) else tree_of(release)
    after = patched_tree(release, *(("turboquant-hybrid",) if grows(release) else ()), "turboquant-workspace")

    found = Comparison(*upstream.beside(interpreter(release), file, (before, after), tmp_path))

    assert found.stock == (Counter(passed=104, failure=2, skipped=ON_GPU), RESERVATION)
    assert found.patched == (Counter(passed=106, skipped=ON_GPU), set())


def floats(encoded: str) -> array[float]:
    """Decode the numbers of an output."""
    return array("f", b64decode(encoded))
