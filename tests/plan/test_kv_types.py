"""KV cache types with scales for each token and head, or for a few elements: sizes, refusals, and the comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from vpatch.core.catalogue import discover
from vpatch.plan import CHUNKED, FULL, GIB, SLIDING, Attention, Latent, Model
from vpatch.plan.checkpoint import model_of
from vpatch.plan.deployment import KV_TYPES, PER_TOKEN_HEAD
from vpatch.plan.fit import fit, remedies
from vpatch.plan.kv_cache import layout
from vpatch.plan.verdict import plan

from tests.failures import problems_of
from tests.plan.configs import named
from tests.plan.examples import FOUR_BITS, dense, deployment, hybrid, weights_of

if TYPE_CHECKING:
    from tests.conftest import Program

INT8, FP8, INT4 = PER_TOKEN_HEAD
ODD = dense(attention=Attention(16, 8, 80))
SMALL = dense(attention=Attention(16, 8, 64))
WINDOWED = dense(layers=4, window=512)
WINDOWED = replace(WINDOWED, layers=(SLIDING, FULL) * 2)
TWO_SIZES = replace(WINDOWED, attention=Attention(16, 1, 512), local=Attention(16, 2, 256))
MLA = dense(attention=Attention(16, 1, 576, Latent(512, 64, 128, 128, 0)))


@pytest.mark.parametrize(
    ("dtype", "model", "size"),
    [
        (INT8, dense(), 128 + 4),  # a scale is a float32, of each key and each value
        (FP8, dense(), 128 + 4),
        (INT4, dense(), 64 + 4),
        (INT8, ODD, 80 + 4),
        (INT4, ODD, 40 + 4),
        ("nvfp4", dense(), 64 + 8),  # a scale is a byte, of each 16 elements
        ("nvfp4_4over6", dense(), 64 + 8),
    ],
)
def test_a_token_takes_its_scales_too(dtype: str, model: Model, size: int) -> None:
    found = layout(model, deployment("0.33.0", "B200", kv_cache_dtype=dtype))

    assert found.page_bytes == found.block_size * 8 * 2 * size


@pytest.mark.parametrize(
    ("dtype", "block"), [("auto", 1056), ("fp8", 2096), (INT8, 2064), (INT4, 4080), ("nvfp4", 3728)]
)
def test_a_block_of_a_hybrid_is_as_large_as_its_state(dtype: str, block: int) -> None:
    """A state of Qwen3.6-35B-A3B takes 2,146,304 bytes, a token 2 x 2 heads of 256 elements with their scales."""
    found = layout(hybrid(), deployment("0.33.0", kv_cache_dtype=dtype))

    assert found.block_size == block
    assert found.page_bytes - 16 * found.page_bytes // block < found.state_bytes <= found.page_bytes


def test_ranks_share_the_scales_with_the_heads() -> None:
    one, four, all_ = (
        layout(dense(), deployment("0.33.0", kv_cache_dtype=INT8, tensor_parallel_size=ranks)) for ranks in (1, 4, 16)
    )

    assert (four.page_bytes, all_.page_bytes) == (one.page_bytes // 4, one.page_bytes // 8)


def test_pages_that_scales_make_unequal_are_padded() -> None:
    """Without scales, a token of two heads of 256 is as large as one of a head of 512."""
    plain, scaled = (layout(TWO_SIZES, deployment("0.33.0", kv_cache_dtype=dtype)) for dtype in ("auto", INT8))

    assert plain.page_bytes == 16 * 2 * 512 * 2
    assert (scaled.block_size, scaled.window_block, scaled.page_bytes) == (16, 16, 16 * 2 * 2 * (256 + 4))


NEW = "0.33.0"


@pytest.mark.parametrize(
    ("model", "vllm", "card", "dtype", "message"),
    [
        (dense(), "0.19.1", "RTX 5090", INT8, f"{INT8} on vLLM 0.19.1: vLLM has it from 0.20.0 on"),
        (dense(), "0.24.0", "RTX 5090", INT4, f"{INT4} on vLLM 0.24.0: vLLM has it from 0.25.0 on"),
        (
            dense(),
            "0.31.0",
            "RTX 5090",
            "nvfp4",
            "nvfp4 on vLLM 0.31.0, RTX 5090 (compute capability 12.0): vLLM has kernels for it on 10.x from 0.21.0 on;"
            " on 8.x, 9.x, 12.x from 0.32.0 on",
        ),
        (dense(), "0.20.2", "B200", "nvfp4", "on 10.x from 0.21.0 on"),
        (dense(), NEW, "RTX 5090", "nvfp4_4over6", "kernels for it on 10.x from 0.28.0 on"),
        (dense(), NEW, "A100", FP8, "(compute capability 8.0): vLLM has kernels"),
        (dense(), NEW, "3090", "nvfp4", ""),
        (dense(), "0.21.0", "H100", INT8, "on 9.x from 0.22.0 on"),
        (ODD, NEW, "RTX 5090", "nvfp4", "it takes heads of 128, 256, 512, not of 80"),
        (SMALL, NEW, "RTX 5090", "nvfp4", "on this GPU it takes heads of 128, 256, 512, not of 64"),
        (SMALL, NEW, "B200", "nvfp4", ""),
        (TWO_SIZES, NEW, "RTX 5090", "nvfp4", "two sizes of heads are left to Triton"),
        (TWO_SIZES, "0.23.0", "B200", "nvfp4", "two sizes of heads are left to Triton"),
        (TWO_SIZES, NEW, "B200", "nvfp4", ""),
        (TWO_SIZES, "0.23.0", "RTX 5090", INT8, "no common size of a block"),
        (ODD, "0.31.0", "RTX 5090", INT4, "before 0.32 it takes heads of a power of two"),
        (ODD, "0.32.0", "RTX 5090", INT4, ""),
        (WINDOWED, "0.27.1", "RTX 5090", INT4, "before 0.28 sliding windows have another size"),
        (WINDOWED, "0.28.0", "RTX 5090", INT4, ""),
        (replace(WINDOWED, layers=(CHUNKED, FULL) * 2), "0.27.1", "RTX 5090", INT4, ""),
        (WINDOWED, NEW, "RTX 5090", FOUR_BITS, "plan does not know what TurboQuant makes of sliding windows"),
        (MLA, NEW, "RTX 5090", INT8, "no kernel for latent attention takes it"),
        (MLA, NEW, "B200", "nvfp4", "no kernel for latent attention takes it"),
        (dense(), NEW, "RTX 5090", "nvfp", "did you mean nvfp4"),
        (dense(), NEW, "RTX 5090", "nvfp4_ds_mla", "plan knows auto, bfloat16"),
    ],
)
def test_what_lacks_the_type_is_refused_by_name(model: Model, vllm: str, card: str, dtype: str, message: str) -> None:
    options = deployment(vllm, card, kv_cache_dtype=dtype)
    if not message:
        assert layout(model, options).page_bytes
        return
    found = "\n".join(map(str, problems_of(layout, model, options)))

    assert found.startswith("no such KV cache: ")
    assert message in found


def test_a_card_that_nobody_named_is_not_refused() -> None:
    options = deployment("0.33.0", kv_cache_dtype="nvfp4")

    assert layout(dense(), replace(options, gpu=replace(options.gpu, capability=None))).page_bytes


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
    assert overlays["nvfp4"] == ()
    assert "turboquant-mtp" in overlays[FOUR_BITS]
    assert {one.dtype: one.fit for one in found.choices}["auto"] == found.fit


def test_a_type_that_vllm_refuses_is_neither_compared_nor_advised() -> None:
    """On Ampere, FlashInfer has no heads of this size, and Triton no FP8."""
    wide = dense(gib=38.3, attention=Attention(16, 8, 96), intermediate_size=1)
    options = deployment("0.33.0", "A100 40GB", max_model_len=40_960, max_num_seqs=8, gpu_memory_utilization=0.98)

    assert "fp8" not in {one.dtype for one in plan(wide, options, discover()).choices}
    assert not any(f"--kv-cache-dtype {dtype}" in list(remedies(fit(wide, options))) for dtype in ("fp8", FP8))


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
    assert {one["dtype"]: one["overlays"] for one in listed}["nvfp4"] == []
    for row, one in zip(rows, listed, strict=True):
        assert f"{one['tokens']:,} tokens" in row
        assert all(overlay in row for overlay in one["overlays"])
