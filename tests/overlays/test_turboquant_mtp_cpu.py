"""turboquant-mtp in the real vLLM, on the CPU: what attention computes, and which CUDA graphs vLLM captures.

On each release the tests compare the tree as published with that with all default overlays. The kernels are vLLM's own,
run by Triton's interpreter; PyTorch stands in for flash attention. `test_probes.py` has the releases that are not here.
"""

from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version

from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, beside, each
from tests.validation.cpu.probe_mtp import STEPS, K
from tests.validation.cpu.probe_speculation import FOUR_BIT, MODES, ON_V2, STARTS

pytestmark = pytest.mark.deep
# Together they have every shape of every part, and the V1 and the V2 runner as the default one.
release = each(sampled(("0.26.0", "0.21.0", "0.33.0", "0.20.2"), 2))
engines = pytest.mark.parametrize("release", sampled(("0.26.0", "0.21.0", "0.20.2"), 2), indirect=True, scope="module")
"""Marks the tests that build models, which the CPU cannot do on 0.33."""

NOISE, WRONG = 4e-3, 0.1
TRUE, OPTIMISTIC = [7, 8, 9, 10], [9, 10, 11, 12]
seen = beside("probe_speculation", models=True)
steps = beside("probe_mtp", models=True)


def wrong_rows(release: str, name: str) -> set[int]:
    """Return the requests of a step that lose cached tokens, or attend to stale ones, on the release as published."""
    rows = STEPS[name]
    if any(not row.cached for row in rows):  # beside a new prompt only decodes keep their KV cache
        return {number for number, row in enumerate(rows) if row.cached and row.new > 1}
    late = Version(release) >= Version("0.21")
    return {number for number, row in enumerate(rows) if row.rejected and late}


@pytest.mark.parametrize("name", STEPS)
def test_attention_is_that_of_the_whole_context(steps: Comparison, release: str, name: str) -> None:
    """The rows that were wrong are right, and a step that was right is computed as before."""
    (stock, patched), wrong = (found[name] for found in steps), wrong_rows(release, name)

    assert {number for number, by in enumerate(stock["wrong by"]) if by > WRONG} == wrong
    assert all(by < NOISE for by in patched["wrong by"])
    if not wrong:
        assert patched["output"] == stock["output"]
        assert patched["calls"] == stock["calls"], "all new prompts of a step are still one call of flash attention"


def is_affected(name: str) -> bool:
    """Whether an engine has TurboQuant and speculation."""
    options = STARTS[name][1]
    return "speculative_config" in options and options.get("kv_cache_dtype", FOUR_BIT) == FOUR_BIT


def same(stock: dict[str, Any], patched: dict[str, Any]) -> bool:
    """Whether a start is as before, or would have been refused (hybrids on 0.20)."""
    return patched == stock or ("error" in stock and bool(patched.get("started")))


@engines
@pytest.mark.parametrize("name", STARTS)
def test_no_graph_of_whole_steps_verifies_drafts(seen: Comparison, name: str) -> None:
    """The graphs are those of vLLM's own configuration and dispatcher."""
    stock, patched = (found["starts"][name] for found in seen)
    graphs = "speculative_config" in STARTS[name][1] and patched["mode"] != "NONE"

    assert patched["started"]
    assert not (is_affected(name) and patched["full"])
    assert is_affected(name) or same(stock, patched) or patched["mode"] == "PIECEWISE"
    assert not graphs or all(size % (1 + K) == 0 for size in patched["sizes"])


@engines
def test_stock_captures_them(seen: Comparison) -> None:
    found = seen.stock["starts"]

    assert all(found[name]["full"] for name in ("ngram", "ngram, decode graphs", "ngram, full graphs"))
    assert found["ngram, piecewise"]["sizes"][:3] == [1, 2, 4]
    assert seen.patched["starts"]["ngram, piecewise"]["sizes"][:3] == [4, 8, 16]


@engines
@pytest.mark.parametrize("name", ON_V2)
def test_the_v2_runner_captures_none_either(seen: Comparison, name: str) -> None:
    stock, patched = (found["on V2"][name] for found in seen)

    assert patched["started"]
    assert "error" in stock or (("FULL" in stock["mode"]) is (name in {"hybrid, MTP", "hybrid, MTP, bf16"}))
    assert ("FULL" in patched["mode"]) is (name == "hybrid, MTP, bf16")


@engines
def test_without_speculation_nothing_changes(seen: Comparison) -> None:
    names = [name for name, (_, options) in STARTS.items() if "speculative_config" not in options]

    assert len(names) >= 3
    for name in names:
        stock, patched = (found["starts"][name] for found in seen)
        assert same(stock, patched)
        assert patched["full"] is ("eager" not in name)


def test_the_v2_runner_lowers_every_mode(seen: Comparison) -> None:
    kept = {"PIECEWISE": "PIECEWISE", "NONE": "NONE"}
    lowered = dict.fromkeys(MODES, "PIECEWISE") | kept

    assert seen.patched["resolved"] == lowered
    assert {mode for mode, found in seen.stock["resolved"].items() if "FULL" in found} == set(MODES) - kept.keys()


def test_new_prompts_are_told_from_others(seen: Comparison) -> None:
    """Among 500 random batches, with decodes before and padding behind."""
    assert (seen.stock["misjudged"], seen.patched["misjudged"]) == (None, [])


def test_lengths_are_those_of_the_device(seen: Comparison, release: str) -> None:
    late = Version(release) >= Version("0.21")

    assert seen.stock["attended"]["two drafts rejected"] == {"lengths": OPTIMISTIC if late else TRUE}
    assert seen.patched["attended"]["two drafts rejected"] == {"lengths": TRUE}
    # This is why no graph may hold a verification.
    assert seen.stock["attended"]["captured"].keys() == ({"own step"} if late else {"error"})
