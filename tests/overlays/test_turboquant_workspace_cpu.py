"""turboquant-workspace in the real vLLM, on the CPU: what is reserved, and what attention computes.

On each release the tests compare the tree as published with the patched one. The kernels are vLLM's own, run by
Triton's interpreter.
"""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections import Counter
from pathlib import Path

import pytest
from packaging.version import Version

from tests.releases import tree_of
from tests.tiers import sampled
from tests.validation.cpu import upstream
from tests.validation.cpu.comparison import Comparison, beside, each
from tests.validation.cpu.environment import interpreter
from tests.validation.cpu.probe_workspace import RESERVED, RUNS
from tests.validation.cpu.trees import patched_tree

pytestmark = pytest.mark.deep

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
    "no chunks": 2 * 8 * 1008 * 128 * 2,
    "no chunks, no prefixes": 16 * 32 * 129 * 4 + 16 * 128 * 2 + 256,
    "a connector": 2 * 8 * 1008 * 128 * 2,
}
FEWER = dict.fromkeys(("no chunks", "a connector"), BYTES["no chunks, no prefixes"])
"""What 0.24 to 0.33 reserve less."""
LOCKED = "Workspace is locked but allocation from 'turboquant_attn.py:"

# Cases that the reservation does not cover, and those that it covers from 0.24 on in patched releases alone.
UNRESERVED = {"no chunks, streamed", "second micro-batch"}
MISSED = {*UNRESERVED, "no chunks", "no chunks, the longest", "no chunks, a connector", "a draft model"}
UNSHARED = "drafts verified"
"""A case that asks for no workspace."""

UPSTREAM_TESTS = "tests/quantization/test_turboquant.py"
ON_GPU = 17
RESERVATION = {
    "test_metadata_builder_reserves_decode_and_continuation_prefill_workspace",
    "test_metadata_builder_skips_continuation_prefill_when_disabled",
}


release = each(sampled(("0.20.2", "0.22.0", "0.21.0", "0.23.0", "0.33.0", "0.24.0"), 2))
seen = beside("probe_workspace", "turboquant-workspace", models=True)


def grows(release: str) -> bool:
    """Whether a release keeps buffers in each layer instead of sharing the workspace."""
    return release.startswith("0.20.")


def reserves(release: str) -> bool:
    """Whether a release reserves by itself."""
    return Version(release) >= Version("0.24")


def test_reserved_bytes(seen: Comparison, release: str) -> None:
    assert seen.stock["reserved"] == (BYTES | FEWER if reserves(release) else dict.fromkeys(RESERVED, 0))
    assert seen.patched["reserved"] == BYTES


def test_upstream_misses_what_no_chunk_or_another_model_asks_for(seen: Comparison, release: str) -> None:
    failed = {name for name, run in seen.stock["runs"].items() if run["errors"]}

    assert failed == (MISSED if reserves(release) else set() if grows(release) else RUNS.keys() - {UNSHARED})


@pytest.mark.parametrize("name", RUNS)
def test_patched_computes_what_stock_does_and_neither_fails_nor_grows(
    seen: Comparison, release: str, name: str
) -> None:
    stock, patched = (found["runs"][name] for found in seen)
    assert all(error.startswith(LOCKED) for error in stock["errors"])
    if grows(release) and name not in {"decode", "a draft model", UNSHARED}:
        added = stock["buffers"][-1].keys() - stock["buffers"][0].keys()
        assert added == {"_tq_k_dequant_buf", "_tq_v_dequant_buf"}

    assert patched["errors"] == []
    assert patched["left"] == patched["reserved"] > 0
    assert all(buffers == patched["buffers"][0] for buffers in patched["buffers"])
    assert bool(patched["told"]) is (name in UNRESERVED)
    assert len(stock["outputs"]) == len(patched["outputs"]) == len(RUNS[name].steps)
    for before, after in zip(stock["outputs"], patched["outputs"], strict=True):
        one, other = (array("f", b64decode(output)) for output in (before, after))
        assert any(one)
        assert all(abs(a - b) <= 1e-3 for a, b in zip(one, other, strict=True))  # false for NaN


def test_upstreams_own_tests(release: str, tmp_path: Path) -> None:
    """The tests of 0.24.0 are those of 0.21.0 and two of the reservation. On 0.20 they also need turboquant-hybrid.

    Later releases run their own.
    """
    file = upstream.fetch(release if reserves(release) else "0.24.0", UPSTREAM_TESTS)
    before = patched_tree(release, "turboquant-hybrid") if grows(release) else tree_of(release)
    after = patched_tree(release, *(("turboquant-hybrid",) if grows(release) else ()), "turboquant-workspace")

    found = Comparison(*upstream.beside(interpreter(release), file, (before, after), tmp_path))

    if reserves(release):
        assert found.patched == found.stock
        assert found.patched[0]["passed"] > 100
        return
    assert found.stock == (Counter(passed=104, failure=2, skipped=ON_GPU), RESERVATION)
    assert found.patched == (Counter(passed=106, skipped=ON_GPU), set())
