"""turboquant-workspace in the real vLLM, on the CPU: what is reserved, and what attention computes.

On each release the tests compare the tree as published with the patched one. The kernels are vLLM's own, run by
Triton's interpreter.
"""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.validation.cpu import models, upstream
from tests.validation.cpu.environment import interpreter, probe
from tests.validation.cpu.probe_workspace import RESERVED, RUNS

Trees = Callable[..., Path]

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


class Comparison(NamedTuple):
    """One result in a tree as published, and in the patched one."""

    stock: Any
    patched: Any

    @classmethod
    def of(cls, do: Callable[..., Any], *arguments: Any) -> Comparison:
        """Run something on both at once."""
        with ThreadPoolExecutor(max_workers=2) as pool:
            return cls(*pool.map(do, *arguments))


MORE = ("0.21.0", "0.22.0", "0.22.1", "0.23.0")


@pytest.fixture(scope="module")
def python() -> Path:
    return interpreter("0.21.0")


@pytest.fixture(
    scope="module",
    params=[
        "0.20.2",
        *(pytest.param(v, marks=pytest.mark.matrix) for v in ("0.20.0", "0.20.1", *MORE)),
    ],
)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def seen(
    release: str, python: Path, pristine: Trees, patched: Trees, tmp_path_factory: pytest.TempPathFactory
) -> Comparison:
    folder = models.write(tmp_path_factory.mktemp("models"))

    def look(tree: Path) -> dict[str, Any]:
        return probe(python, "probe_workspace", tree, tmp_path_factory.mktemp("home"), str(folder))

    return Comparison.of(look, (pristine(release), patched(release, "turboquant-workspace")))


def grows(release: str) -> bool:
    """Whether a release keeps buffers in each layer instead of sharing the workspace."""
    return release.startswith("0.20.")


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_bytes(seen: Comparison, name: str) -> None:
    assert seen.stock["reserved"][name] == 0
    assert seen.patched["reserved"][name] == BYTES[name]


@pytest.mark.matrix
def test_upstream_reserves_the_same_and_misses_the_same_cases(pristine: Trees, tmp_path: Path) -> None:
    folder, home = tmp_path / "models", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    models.write(folder)
    found = probe(interpreter("0.24.0"), "probe_workspace", pristine("0.24.0"), home, str(folder))

    assert found["reserved"] == BYTES
    assert {name for name, run in found["runs"].items() if run["errors"]} == UNRESERVED


@pytest.mark.parametrize("name", RUNS)
def test_stock_fails_on_the_locked_workspace_or_grows(seen: Comparison, release: str, name: str) -> None:
    stock = seen.stock["runs"][name]

    if not grows(release):
        assert stock["errors"]
        assert all(error.startswith(LOCKED) for error in stock["errors"])
    elif name != "decode":
        assert stock["buffers"][-1].keys() - stock["buffers"][0].keys() == {"_tq_k_dequant_buf", "_tq_v_dequant_buf"}


@pytest.mark.parametrize("name", RUNS)
def test_patched_neither_fails_nor_grows(seen: Comparison, name: str) -> None:
    patched = seen.patched["runs"][name]

    assert patched["errors"] == []
    assert patched["left"] == patched["reserved"] > 0
    assert all(buffers == patched["buffers"][0] for buffers in patched["buffers"])


@pytest.mark.parametrize("name", RUNS)
def test_attention_is_that_of_stock(seen: Comparison, name: str) -> None:
    stock, patched = ([floats(output) for output in found["runs"][name]["outputs"]] for found in seen)

    assert len(stock) == len(patched) == len(RUNS[name].steps)
    for one, other in zip(stock, patched, strict=True):
        assert any(one)
        assert all(abs(a - b) <= 1e-3 for a, b in zip(one, other, strict=True))  # false for NaN


def test_every_other_case_fits_in_the_reservation(seen: Comparison) -> None:
    assert {name for name, found in seen.patched["runs"].items() if found["told"]} == UNRESERVED


def test_upstreams_own_tests(release: str, python: Path, pristine: Trees, patched: Trees, tmp_path: Path) -> None:
    """The tests of 0.24.0 are those of 0.21.0 and two of the reservation. On 0.20 they also need turboquant-hybrid."""
    file = upstream.fetch("0.24.0", UPSTREAM_TESTS)
    before = patched(release, "turboquant-hybrid") if grows(release) else pristine(release)
    after = patched(release, *(("turboquant-hybrid",) if grows(release) else ()), "turboquant-workspace")

    ran = Comparison(*upstream.beside(python, file, (before, after), tmp_path))

    assert ran.stock == (Counter(passed=104, failure=2, skipped=ON_GPU), RESERVATION)
    assert ran.patched == (Counter(passed=106, skipped=ON_GPU), set())


def floats(encoded: str) -> array[float]:
    """Decode the numbers of an output."""
    return array("f", b64decode(encoded))
