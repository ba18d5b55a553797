"""Upstream's own tests, unchanged, on older releases, stock and patched."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import Trees
from tests.cpu import upstream, validation
from tests.cpu.environment import interpreter

TURBOQUANT = "tests/quantization/test_turboquant.py"
RESERVES = {
    "test_metadata_builder_reserves_decode_and_continuation_prefill_workspace",
    "test_metadata_builder_skips_continuation_prefill_when_disabled",
}
QUANTIZED_HEADS = {
    f"tests.model_executor.test_qwen3_5_quantization::test_{model}_lm_head_receives_quant_config"
    for model in ("qwen3_5", "qwen3_5_mtp")
}


@pytest.mark.parametrize(
    "release", ["0.21.0", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("0.22.1", "0.23.0"))]
)
def test_stock_reserves_no_workspace(release: str, pristine: Trees, tmp_path: Path) -> None:
    assert _reserving(release, pristine(release), tmp_path) == (Counter(passed=104, failure=2, skipped=17), RESERVES)


@pytest.mark.parametrize(
    "release", ["0.21.0", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("0.22.1", "0.23.0"))]
)
def test_patched_reserves_it(release: str, patched: Trees, tmp_path: Path) -> None:
    pytest.importorskip("vpatch_overlays.turboquant_workspace")
    tree = patched(release, "turboquant-workspace")

    assert _reserving(release, tree, tmp_path) == (Counter(passed=106, skipped=17), set())


def test_upstream_reserves_it(pristine: Trees, tmp_path: Path) -> None:
    assert _reserving("0.24.0", pristine("0.24.0"), tmp_path) == (Counter(passed=106, skipped=17), set())


@pytest.mark.parametrize(
    "release",
    ["0.20.2", *(pytest.param(one, marks=pytest.mark.matrix) for one in validation.RELEASES if one != "0.20.2")],
)
def test_quantized_heads(release: str) -> None:
    found = validation.beside(release)

    assert {found.stock[name].outcome for name in QUANTIZED_HEADS} <= {"passed", "failure"}
    if found.patched is None:
        pytest.skip("the overlay is not here yet")
    assert {found.patched[name].outcome for name in QUANTIZED_HEADS} == {"passed"}
    worse = {name for name, case in found.stock.items() if case.outcome == "passed" != found.patched[name].outcome}
    assert not worse


def _reserving(release: str, tree: Path, home: Path) -> tuple[Counter[str], set[str]]:
    return upstream.run(interpreter(release), upstream.fetch("0.24.0", TURBOQUANT), tree, home)
