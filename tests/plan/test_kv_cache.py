"""The layout of the KV cache by numbers, and what is refused; `test_agreement.py` compares it with vLLM's own code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vpatch.plan import CHUNKED, FULL, LINEAR, SLIDING, Attention, Latent, Model
from vpatch.plan.checkpoint import model_of
from vpatch.plan.deployment import PER_TOKEN_HEAD, TURBOQUANT
from vpatch.plan.kv_cache import blocks_for, capacity, layout, longest, token_bytes
from vpatch.plan.refusals import skipped_layers

from tests.failures import problems_of
from tests.plan.configs import named
from tests.plan.examples import DENSE_HYBRID, FLASH, FOUR_BITS, KIMI, MOE, R1, dense, deployment, hybrid
from tests.plan.test_memory import GEMMA_4, SMALL_GEMMA_4, started

INT8, FP8, INT4 = PER_TOKEN_HEAD
NEW, CARD = "0.33.0", "RTX 5090"


def made(name: str, **text: Any) -> Model:
    """Return a model of an architecture, by a part of its name."""
    return model_of(named(f"{name}ForCausalLM", **text), "", name=name)


HYBRID, THREE_HEADS, NEMOTRON = hybrid(), dense(attention=Attention(24, 3, 128)), made("NemotronH")
NANO = made("NemotronH", hybrid_override_pattern="MEM*", mamba_num_heads=64)
ODD, SMALL = dense(attention=Attention(16, 8, 80)), dense(attention=Attention(16, 8, 64))
WINDOWED = replace(dense(layers=4, window=512), layers=(SLIDING, FULL) * 2)
TWO_SIZES = replace(WINDOWED, attention=Attention(16, 1, 512), local=Attention(16, 2, 256))
MLA = dense(attention=Attention(16, 1, 576, Latent(512, 64, 128, 128, 0)))
SPARSE, ZAMBA = made("GlmMoeDsa"), made("Zamba2")
CACHED: dict[str, Any] = {"enable_prefix_caching": True}


def latent(config: dict[str, Any], **changed: Any) -> Model:
    return model_of(config | changed, "", name="latent")


@pytest.mark.parametrize(
    ("model", "vllm", "card", "dtype", "options", "block"),
    [
        # Hybrids, as others reported: a block is as large as a state.
        (hybrid(MOE), "0.20.2", CARD, FOUR_BITS, {}, 4096),
        (hybrid(MOE), "0.20.2", CARD, "turboquant_k8v4", {}, 2768),
        (hybrid(MOE), "0.20.2", CARD, "turboquant_3bit_nc", {}, 5424),
        (hybrid(MOE), "0.20.2", CARD, FOUR_BITS, {"speculative_tokens": 3}, 4192),
        (hybrid(DENSE_HYBRID), "0.20.2", CARD, FOUR_BITS, {}, 3072),
        (hybrid(DENSE_HYBRID), "0.20.2", CARD, "turboquant_k8v4", {}, 2080),
        (hybrid(DENSE_HYBRID), "0.20.2", CARD, FOUR_BITS, {"speculative_tokens": 3}, 3120),
        # With the scales of a token and head, or of 16 elements.
        (HYBRID, NEW, CARD, "auto", {}, 1056),
        (HYBRID, NEW, CARD, "fp8", {}, 2096),
        (HYBRID, NEW, CARD, INT8, {}, 2064),
        (HYBRID, NEW, CARD, INT4, {}, 4080),
        (HYBRID, NEW, CARD, "nvfp4", {}, 3728),
        # Kernels that export states.
        (HYBRID, NEW, CARD, "auto", CACHED, 1088),
        (HYBRID, NEW, "4090", "auto", CACHED, 1056),
        # Mamba: in float16 where the config has no type; with prefix caching, of whole chunks up to 0.27.
        (NANO, "0.19.1", CARD, "auto", {}, 272),
        (NANO, "0.20.2", CARD, "auto", {}, 528),
        (NANO, "0.20.2", CARD, "auto", CACHED, 768),
        (NANO, "0.28.0", CARD, "auto", CACHED, 528),
        # Of latent attention, the kernel decides: FlashAttention, FlashMLA, FlashInfer, Triton, CUTLASS.
        (latent(R1), NEW, "H100", "auto", {}, 16),
        (latent(R1), NEW, "H100", "fp8", {}, 64),
        (latent(R1), "0.18.0", "B200", "auto", {}, 32),
        (latent(FLASH), NEW, CARD, "fp8", {}, 16),
        (latent(R1, qk_nope_head_dim=96), "0.20.2", "B200", "auto", {}, 128),
        (latent(R1, kv_lora_rank=448), "0.29.0", "H100", "fp8", {}, 16),
        (latent(R1, kv_lora_rank=448), "0.30.0", "H100", "fp8", {}, 64),
        (latent(KIMI), "0.18.0", "H100", "auto", CACHED, 1920),
        (latent(KIMI), "0.20.2", "H100", "auto", CACHED, 1888),
        # Windows, and boundary layers that TurboQuant leaves alone.
        (started(GEMMA_4), "0.23.0", CARD, "auto", {}, 32),
        (started(GEMMA_4), "0.31.0", "H100", "fp8", {}, 128),
        (dense(), "0.24.0", CARD, FOUR_BITS, {}, 16),
        (dense(), "0.25.0", CARD, FOUR_BITS, {}, 32),
    ],
)
def test_blocks(model: Model, vllm: str, card: str, dtype: str, options: dict[str, Any], block: int) -> None:
    found = layout(model, deployment(vllm, card, kv_cache_dtype=dtype, **options))

    assert found.block_size == block
    assert found.state_bytes <= found.page_bytes


@pytest.mark.parametrize(
    ("dtype", "model", "size"),
    [
        (INT8, dense(), 128 + 4),  # a scale is a float32, of each key and each value
        (INT4, ODD, 40 + 4),
        ("nvfp4", dense(), 64 + 8),  # a scale is a byte, of each 16 elements
    ],
)
def test_a_token_takes_its_scales_too(dtype: str, model: Model, size: int) -> None:
    found = layout(model, deployment(NEW, "B200", kv_cache_dtype=dtype))

    assert found.page_bytes == found.block_size * 8 * 2 * size


def test_slots_of_turboquant() -> None:
    """Of a token, for keys and values, at a head size of 256."""
    assert [token_bytes(Attention(1, 1, 256), dtype, "bfloat16") for dtype in TURBOQUANT] == [388, 262, 230, 198]
    assert skipped_layers(dense(), deployment(kv_cache_dtype=FOUR_BITS)) == {0, 1, 26, 27}


@pytest.mark.parametrize(
    ("full", "linear", "groups", "page"),
    [
        (11, 30, (11, 10, 10, 10), 11),  # the last group has 10 layers, and takes the memory of 11
        (12, 13, (12, 13), 13),  # nearly as many of a kind are one group
    ],
)
def test_groups(full: int, linear: int, groups: tuple[int, ...], page: int) -> None:
    found = layout(hybrid(layers=(FULL,) * full + (LINEAR,) * linear), deployment())

    assert (found.groups, found.bytes_per_block[0] // found.page_bytes) == (groups, page)


def test_newer_releases_keep_a_block_back_and_the_smallest_stage_decides() -> None:
    for vllm, spare in (("0.28.0", 0), ("0.29.0", 1)):
        laid = layout(HYBRID, deployment(vllm))
        length = longest(laid, deployment(vllm), 100)
        assert blocks_for(laid, length) == 100 - spare < blocks_for(laid, length + 1)

    options = deployment(pipeline_parallel_size=2)
    laid = layout(HYBRID, options)
    first, second = laid.bytes_per_block
    assert capacity(laid, options, [100 * first, 7 * second]).blocks == 7
    assert capacity(laid, options, [-5, second]).blocks == 0 == capacity(laid, options, [first - 1, second]).tokens


@pytest.mark.parametrize(
    ("model", "vllm", "card", "dtype", "message"),
    [
        (HYBRID, "0.19.1", CARD, FOUR_BITS, f"{FOUR_BITS} on vLLM 0.19.1"),
        (HYBRID, "0.20.2", CARD, "fp4", "fp4 on vLLM 0.20.2"),
        (dense(), "0.19.1", CARD, INT8, f"{INT8} on vLLM 0.19.1: vLLM has it from 0.20.0 on"),
        (dense(), "0.24.0", CARD, INT4, f"{INT4} on vLLM 0.24.0: vLLM has it from 0.25.0 on"),
        (dense(), "0.31.0", CARD, "nvfp4", "nvfp4 on vLLM 0.31.0, RTX 5090 (compute capability 12.0): "),
        (dense(), "0.31.0", CARD, "nvfp4", "for it on 10.x from 0.21.0 on; on 8.x, 9.x, 12.x from 0.32.0 on"),
        (dense(), NEW, CARD, "nvfp4_4over6", "kernels for it on 10.x from 0.28.0 on"),
        (dense(), NEW, "A100", FP8, "(compute capability 8.0): vLLM has kernels"),
        (dense(), NEW, "3090", "nvfp4", ""),
        (dense(), "0.21.0", "H100", INT8, "on 9.x from 0.22.0 on"),
        (ODD, NEW, CARD, "nvfp4", "it takes heads of 128, 256, 512, not of 80"),
        (SMALL, NEW, CARD, "nvfp4", "on this GPU it takes heads of 128, 256, 512, not of 64"),
        (SMALL, NEW, "B200", "nvfp4", ""),
        (TWO_SIZES, NEW, CARD, "nvfp4", "two sizes of heads are left to Triton"),
        (TWO_SIZES, "0.23.0", "B200", "nvfp4", "two sizes of heads are left to Triton"),
        (TWO_SIZES, NEW, "B200", "nvfp4", ""),
        (TWO_SIZES, "0.23.0", CARD, INT8, "no common size of a block"),
        (made("Gemma4", head_dim=192, global_head_dim=256), "0.20.2", CARD, "auto", "no common size"),
        (ODD, "0.31.0", CARD, INT4, "before 0.32 it takes heads of a power of two"),
        (ODD, "0.32.0", CARD, INT4, ""),
        (WINDOWED, "0.27.1", CARD, INT4, "before 0.28 sliding windows have another size"),
        (WINDOWED, "0.28.0", CARD, INT4, ""),
        (replace(WINDOWED, layers=(CHUNKED, FULL) * 2), "0.27.1", CARD, INT4, ""),
        (WINDOWED, NEW, CARD, FOUR_BITS, "plan does not know what TurboQuant makes of sliding windows"),
        (MLA, NEW, CARD, INT8, "no kernel for latent attention takes it"),
        (MLA, NEW, "B200", "nvfp4", "no kernel for latent attention takes it"),
        (latent(R1), NEW, "H100", "turboquant_k8v4", "no kernel for latent attention takes it"),
        (latent(R1), NEW, "H100", "fp8_e5m2", "no kernel for latent attention takes it"),
        (latent(FLASH), "0.26.0", "3090", "fp8", "before Ada"),
        (dense(), NEW, CARD, "nvfp", "did you mean nvfp4"),
        (dense(), NEW, CARD, "nvfp4_ds_mla", "plan knows auto, bfloat16"),
        (made("FalconH1"), "0.20.2", CARD, FOUR_BITS, "does not find the attention of layers that also keep a state"),
    ],
)
def test_a_type_that_is_lacking_is_refused(model: Model, vllm: str, card: str, dtype: str, message: str) -> None:
    options = deployment(vllm, card, kv_cache_dtype=dtype)
    if not message:
        assert layout(model, options).page_bytes
    else:
        assert message in "\n".join(map(str, problems_of(layout, model, options)))


def test_a_card_that_nobody_named_is_not_refused() -> None:
    options = deployment(NEW, kv_cache_dtype="nvfp4")

    assert layout(dense(), replace(options, gpu=replace(options.gpu, capability=None))).page_bytes


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (HYBRID, {"tensor_parallel_size": 3}, "its 16 attention heads are not divisible by 3"),
        (HYBRID, {"pipeline_parallel_size": 41}, "cannot divide the model: 41 stages: it has 40 layers"),
        (THREE_HEADS, {"tensor_parallel_size": 4}, "3 KV heads cannot be copied to them evenly"),
        (hybrid(layers=(LINEAR,) * 8), {}, "no attention"),
        (HYBRID, {"mamba_ssm_cache_dtype": "bfloat16"}, "no such states: bfloat16 on vLLM 0.20.2"),
        (NANO, {"tensor_parallel_size": 16}, "its 8 groups of a state are not divisible by 16"),
        (NANO, {"pipeline_parallel_size": 4}, "4 stages: a stage would have no KV cache"),
        (ZAMBA, {"pipeline_parallel_size": 2}, "vLLM does not divide layers that share their attention"),
        (latent(KIMI), {"vllm": NEW, "mamba_ssm_cache_dtype": "bfloat16"}, "of Kimi Delta Attention are in float32"),
        (latent(FLASH), {"vllm": "0.19.0", "card": "H100"}, "vLLM has it from 0.19.1 on"),
        (latent(R1, v_head_dim=64), {"vllm": "0.26.0", "card": "H100"}, "vLLM 0.26.0 has none for prompts"),
        (SPARSE, {"vllm": NEW}, "plan knows those of Hopper"),
        (SPARSE, {"vllm": NEW, "card": "A100"}, "plan knows those of Hopper"),
        (started(GEMMA_4), {"vllm": "0.18.1"}, "ConditionalGeneration on vLLM 0.18.1: vLLM has it from 0.19.0"),
        # Of 42 layers, the last 18 read the caches of 22 and 23.
        (started(SMALL_GEMMA_4), {"pipeline_parallel_size": 3}, "another stage than those whose KV cache they read"),
    ],
)
def test_what_vllm_refuses(model: Model, options: dict[str, Any], message: str) -> None:
    assert message in "\n".join(map(str, problems_of(layout, model, deployment(**options))))


def test_every_problem_is_named_at_once() -> None:
    options = deployment(kv_cache_dtype="fp4", tensor_parallel_size=5, pipeline_parallel_size=50)

    assert len(problems_of(layout, HYBRID, options)) == 6  # the cache, three kinds of heads, heads to copy, stages
