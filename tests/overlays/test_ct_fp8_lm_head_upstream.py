"""The newest release's tests of heads and compressed-tensors, on older releases; all results: docs/validation.md."""

from __future__ import annotations

import pytest

from tests.validation.cpu import validation

pytestmark = pytest.mark.deep

TESTS = {
    f"tests.model_executor.test_qwen3_5_quantization::test_{model}_lm_head_receives_quant_config"
    for model in ("qwen3_5", "qwen3_5_mtp")
}


@pytest.mark.parametrize("release", ["0.20.2", "0.26.0", "0.33.0"])
def test_upstreams_own_tests(release: str) -> None:
    found = stock, patched = validation.compared(release)

    assert validation.row(release, found) in validation.DOCUMENT.read_text().splitlines()
    failing = {name for name in TESTS if stock[name].outcome != "passed"}
    assert failing == (TESTS if release < "0.23" else set())
    assert {patched[name].outcome for name in TESTS} == {"passed"}
    assert not {name for name, case in stock.items() if case.outcome == "passed" != patched[name].outcome}
