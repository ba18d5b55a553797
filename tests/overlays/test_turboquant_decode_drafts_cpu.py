"""turboquant-decode with turboquant-mtp, in the real vLLM on the CPU: steps that verify drafts are decode steps.

Both trees have the default overlays, and one has turboquant-decode, too. Triton's interpreter runs the kernels.
"""

from __future__ import annotations

from array import array
from base64 import b64decode
from typing import Any

import pytest

from tests.releases import todo
from tests.tiers import sampled
from tests.validation.cpu.comparison import each, ran
from tests.validation.cpu.probe_mtp import STEPS, K
from tests.validation.cpu.trees import patched_tree

NOISE = 4e-3  # as in test_turboquant_mtp_cpu.py
WINDOW = 1 + K

pytestmark = pytest.mark.deep
release = each(sampled(["0.26.0", "0.21.0"], 2))


@pytest.fixture(scope="module")
def fast(release: str, folder: str) -> Any:
    return probed(release, folder, "on", "turboquant-decode")


@pytest.fixture(scope="module")
def slow(release: str, folder: str) -> Any:
    return probed(release, folder, "on")


def probed(release: str, folder: str, switch: str, *opt_in: str) -> Any:
    return ran("probe_decode_drafts", release, patched_tree(release, *todo(release), *opt_in), folder, switch)


def outputs(found: dict[str, Any]) -> list[float]:
    return list(array("f", b64decode(found["output"])))


@pytest.mark.parametrize("name", STEPS)
def test_attention_is_that_of_the_slow_form(fast: Any, slow: Any, name: str) -> None:
    found, other = fast["steps"][name], slow["steps"][name]

    assert max(found["wrong by"]) < NOISE
    assert max(other["wrong by"]) < NOISE
    assert max(abs(a - b) for a, b in zip(outputs(found), outputs(other), strict=True)) < NOISE


def test_the_tokens_of_a_request_are_one_window_if_all_requests_are_alike(fast: Any) -> None:
    decoded = sum(row.new for row in STEPS["everything"] if row.new <= WINDOW)

    launches = {name: step["launches"] for name, step in fast["steps"].items()}
    assert launches["everything"][0] == ["split_kernel", decoded]
    for name in ("verification", "rejected drafts", "decodes"):
        assert launches[name] == [["split_kernel", 2]]


def test_padding_of_a_graph_gives_zero_and_vllms_kernel_remains_if_the_warm_up_failed(fast: Any) -> None:
    found, failed = fast["padded"], fast["failed"]

    assert max(*found["wrong by"], *failed["wrong by"]) < NOISE
    assert (found["launches"], found["finite"], found["padding"]) == ([["split_kernel", 2]], True, 0.0)
    assert {name for name, _ in failed["launches"]} == {"_tq_decode_stage1"}


def test_graphs_hold_up_to_eight_drafts(fast: Any, slow: Any) -> None:
    held = {"graphs": "UNIFORM_BATCH"}
    lowered = {"graphs": "UNIFORM_SINGLE_TOKEN_DECODE", "threshold": 1}

    assert fast["supported"] == {
        "1": held | {"threshold": 2},
        "3": held | {"threshold": 4},
        "8": held | {"threshold": 9},
        "9": lowered,
    }
    assert slow["supported"] == dict.fromkeys(("1", "3", "8", "9"), lowered)


def test_the_switch_leaves_the_slow_form(release: str, folder: str, slow: Any) -> None:
    found = probed(release, folder, "off", "turboquant-decode")

    assert found["supported"] == slow["supported"]
    for name, step in found["steps"].items():
        assert step["output"] == slow["steps"][name]["output"], name
