"""The comparison of KV cache types, and which of them plan advises."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from vpatch.core.catalogue import discover
from vpatch.plan import GIB
from vpatch.plan.checkpoint import model_of
from vpatch.plan.deployment import KV_TYPES, PER_TOKEN_HEAD
from vpatch.plan.fit import fit, remedies
from vpatch.plan.verdict import plan

from tests.plan.configs import named
from tests.plan.examples import FOUR_BITS, dense, deployment, hybrid, weights_of

if TYPE_CHECKING:
    from tests.conftest import Program

INT8, FP8, INT4 = PER_TOKEN_HEAD


@pytest.mark.parametrize(
    ("vllm", "card", "extra"),
    [
        ("0.19.1", "RTX 5090", set()),
        ("0.20.2", "RTX 5090", {INT8, FP8}),
        ("0.20.2", "H100", set()),
        ("0.25.0", "H100", {INT8, FP8, INT4}),
        ("0.31.0", "RTX 5090", {INT8, FP8, INT4}),
        ("0.31.0", "B200", {INT8, FP8, INT4, "nvfp4", "nvfp4_4over6"}),
        ("0.33.0", "RTX 5090", {INT8, FP8, INT4, "nvfp4"}),
        ("0.33.0", "A100", {INT8, INT4, "nvfp4"}),
    ],
)
def test_types_are_compared_that_the_release_and_the_card_have(vllm: str, card: str, extra: set[str]) -> None:
    found = {one.dtype for one in plan(hybrid(), deployment(vllm, card), discover()).choices}
    turboquant = {name for name in KV_TYPES if "turboquant" in name} if vllm >= "0.20" else set()

    assert found == {"auto", "fp8"} | turboquant | extra


def test_a_smaller_type_holds_more_and_names_its_overlays() -> None:
    found = plan(hybrid(), deployment("0.33.0", enable_prefix_caching=True), discover())
    tokens = {one.dtype: one.fit.likely.tokens for one in found.choices}
    overlays = {one.dtype: one.overlays for one in found.choices}

    assert list(tokens.values()) == sorted(tokens.values())
    assert tokens["auto"] < tokens["fp8"] < tokens["nvfp4"] < tokens[FOUR_BITS]
    assert not any(one.startswith("turboquant-") for one in overlays["nvfp4"])
    assert "turboquant-mtp" in overlays[FOUR_BITS]
    assert {one.dtype: one.fit for one in found.choices}["auto"] == found.fit


@pytest.mark.parametrize(("vllm", "advised"), [("0.31.0", FOUR_BITS), ("0.33.0", "nvfp4")])
def test_the_largest_type_that_fits_is_advised(vllm: str, advised: str) -> None:
    """A request of 40,960 tokens takes 3.7 GiB in TurboQuant's largest type, 2.5 in NVFP4; 3.2 are there."""
    model, options = dense(56, gib=20.0), deployment(vllm, max_model_len=40_960)
    spare = fit(model, options).memory.kv_cache.likely - int(3.2 * GIB)
    model = dense(56, gib=20.0 + spare / GIB)

    assert f"--kv-cache-dtype {advised}" in list(remedies(fit(model, options)))


@pytest.mark.parametrize(
    "scheme",
    [{"kv_cache_quant_algo": "NVFP4"}, {"kv_cache_scheme": {"num_bits": 4, "type": "float", "dynamic": False}}],
    ids=["algorithm", "scheme"],
)
def test_a_checkpoint_with_scales_in_nvfp4_gets_such_a_cache(scheme: dict[str, Any]) -> None:
    quantized = {"quant_method": "modelopt", "quant_algo": "NVFP4"} | scheme
    model = model_of(named("Qwen3ForCausalLM", quantization_config=quantized), "", name="Qwen3")
    model = replace(model, weights=weights_of(dense(len(model.layers))))

    assert model.kv_cache_dtype == "nvfp4"
    assert plan(model, deployment("0.33.0"), discover()).deployment.kv_cache_dtype == "nvfp4"
    assert plan(model, deployment("0.19.1"), discover()).deployment.kv_cache_dtype == "auto", "it does not know it"


def test_the_comparison_by_the_command(vpatch: Program) -> None:
    arguments = ("plan", "--model", "Qwen3.6-35B-A3B-NVFP4", "--gpu", "5090", "--vllm", "0.33.0", "--max-num-seqs", "8")
    shown, listed = vpatch(*arguments, "-v"), vpatch(*arguments, "--json").json["kv_cache_types"]
    rows = [line for line in shown.out.splitlines() if line.startswith("kv cache types: ")]

    assert "kv cache types" not in vpatch(*arguments).out
    assert [row.split(": ")[1] for row in rows] == [one["dtype"] for one in listed]
    assert [row for row in rows if row.endswith("; this plan")] == [rows[0]]
    for_nvfp4 = {one["dtype"]: one["overlays"] for one in listed}["nvfp4"]
    assert not any(one.startswith("turboquant-") for one in for_nvfp4)
    of_all = set.intersection(*({*one["overlays"]} for one in listed))
    assert of_all
    for row, one in zip(rows, listed, strict=True):
        assert f"{one['tokens']:,} tokens" in row
        assert {overlay for overlay in one["overlays"] if overlay in row} == {*one["overlays"]} - of_all
