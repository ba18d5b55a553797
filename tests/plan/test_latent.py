"""Multi-head latent attention (MLA): DeepSeek V2 to V3.2, Kimi K2, GLM-4.7-Flash and GLM-5, by release and GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from vpatch.errors import Failure
from vpatch.plan import GIB, Model
from vpatch.plan.checkpoint import model_of
from vpatch.plan.defaults import gpu
from vpatch.plan.deployment import Deployment, Gpu
from vpatch.plan.fit import fit
from vpatch.plan.kv_cache import capacity, layout
from vpatch.plan.weights import with_total

from tests.paths import ROOT
from tests.plan.configs import named
from tests.plan.examples import traits, weights_of

SPARSE = "GlmMoeDsaForCausalLM"
R1 = named("DeepseekV3ForCausalLM", num_hidden_layers=61, num_attention_heads=128, hidden_size=7168)
FLASH = named("Glm4MoeLiteForCausalLM", num_hidden_layers=47, num_attention_heads=20)
# As Kimi-Linear-48B-A3B, with eight of its layers.
KIMI = named(
    "KimiLinearForCausalLM",
    num_hidden_layers=8,
    hidden_size=2304,
    linear_attn_config={
        "kda_layers": [1, 2, 3, 5, 6, 7],
        "full_attn_layers": [4, 8],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    },
)
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def model(config: dict[str, Any]) -> Model:
    return model_of(config, "config.json", name="some")


def deployment(vllm: str = "0.33.0", capability: tuple[int, int] = (9, 0), **options: Any) -> Deployment:
    return Deployment(traits(vllm), Gpu("GPU", 80 * GIB, capability), 4096, **options)


@pytest.mark.parametrize(
    ("config", "vllm", "capability", "dtype", "tokens"),
    [
        (R1, "0.33.0", (9, 0), "auto", 16),  # FLASH_ATTN_MLA
        (R1, "0.33.0", (9, 0), "fp8", 64),  # FLASHMLA
        (R1, "0.18.0", (10, 0), "auto", 32),  # FLASHINFER_MLA
        (FLASH, "0.19.1", (10, 0), "auto", 32),
        (FLASH, "0.33.0", (12, 0), "fp8", 16),  # TRITON_MLA
        (R1 | {"qk_nope_head_dim": 96}, "0.20.2", (10, 0), "auto", 128),  # CUTLASS_MLA
        (R1 | {"kv_lora_rank": 448}, "0.29.0", (9, 0), "fp8", 16),  # TRITON_MLA
        (R1 | {"kv_lora_rank": 448}, "0.30.0", (9, 0), "fp8", 64),
    ],
)
def test_the_kernel_decides_on_the_block_size(
    config: dict[str, Any], vllm: str, capability: tuple[int, int], dtype: str, tokens: int
) -> None:
    assert layout(model(config), deployment(vllm, capability, kv_cache_dtype=dtype)).block_size == tokens


def test_each_rank_has_the_whole_latent() -> None:
    sizes = {layout(model(R1), deployment(tensor_parallel_size=ranks)).bytes_per_block for ranks in (1, 2, 8)}

    assert sizes == {(61 * 16 * 576 * 2,)}


@pytest.mark.parametrize(
    ("config", "deployed", "cause"),
    [
        (R1, deployment(kv_cache_dtype="turboquant_k8v4"), "no kernel for latent attention takes it"),
        (R1, deployment(kv_cache_dtype="fp8_e5m2"), "no kernel for latent attention takes it"),
        (FLASH, deployment("0.26.0", (8, 6), kv_cache_dtype="fp8"), "before Ada"),
        (FLASH, deployment("0.19.0"), "vLLM has it from 0.19.1 on"),
        (R1 | {"v_head_dim": 64}, deployment("0.26.0"), "vLLM 0.26.0 has none for prompts"),
        (named(SPARSE), deployment(capability=(12, 0)), "plan knows those of Hopper"),
        (named(SPARSE), deployment(capability=(8, 0)), "plan knows those of Hopper"),
    ],
)
def test_what_has_no_kernel_is_refused_by_name(config: dict[str, Any], deployed: Deployment, cause: str) -> None:
    with pytest.raises(Failure, match=cause):
        layout(model(config), deployed)


def test_a_model_without_a_latent_is_unknown_and_has_no_bounds() -> None:
    found = model(R1 | {"kv_lora_rank": None})

    assert found.unknown == ("attention is not latent: kv_lora_rank is null",)
    assert not found.bounded


@pytest.mark.parametrize(
    ("config", "vllm", "dtype", "ranks", "printed_gib", "printed_tokens"),
    [("GLM-5.1", "0.19.1", "auto", 8, 32.11, 344_192), ("GLM-5.2", "0.26.0", "fp8", 4, 50.62, 1_139_456)],
)
def test_sparse_attention_is_laid_out_as_a_start_printed(
    config: str, vllm: str, dtype: str, ranks: int, printed_gib: float, printed_tokens: int
) -> None:
    """Two starts of docs/starts. GLM-5.1's shape is that of transformers' defaults.

    The config of GLM-5.2 was not at hand: that 21 of its 78 layers have an indexer was inferred from this very number.
    """
    shape = model(json.loads((ROOT / f"docs/starts/configs/zai-org--{config}.json").read_text()))
    blackwell = (10, 0) if dtype == "fp8" else (9, 0)
    deployed = deployment(vllm, blackwell, kv_cache_dtype=dtype, tensor_parallel_size=ranks)
    deployed = replace(deployed, max_model_len=deployed.max_model_len * 50)
    found = capacity(layout(shape, deployed), deployed, [int(printed_gib * GIB)])

    assert found.tokens == pytest.approx(printed_tokens, abs=128)


def test_an_indexer_pattern_names_the_layers_that_share() -> None:
    latent = model(named(SPARSE, index_topk_pattern="FFSS")).attention.latent

    assert latent
    assert latent.shares == {2, 3}
    with pytest.raises(Failure, match="index_topk_pattern is no text and no list"):
        model(named(SPARSE, index_topk_pattern=3))


def test_a_quantized_up_projection_is_kept_once_more() -> None:
    plain, quantized = (weights_of(model(config)) for config in (R1, R1 | {"quantization_config": FP8}))

    assert plain.added == 0
    assert quantized.added == 512 * 128 * (128 + 128) * 2
    given = weights_of(with_total(model(R1 | {"quantization_config": FP8}), 700))
    assert given.added == 0  # what is given is what the weights take once they are loaded


def test_ranks_do_not_divide_what_makes_the_latent() -> None:
    found = model(R1)
    of_one, of_two = (
        fit(found, Deployment(traits("0.33.0"), gpu("H200"), 4096, tensor_parallel_size=ranks)) for ranks in (1, 2)
    )
    whole = 61 * 7168 * (1536 + 576) * 2

    assert weights_of(found).whole == whole
    assert 2 * of_two.memory.items[0].size.likely - of_one.memory.items[0].size.likely == pytest.approx(whole, abs=2)


def test_the_workspace_for_cached_tokens_is_not_counted() -> None:
    found = model(FLASH)
    memory = fit(found, deployment()).memory
    (workspace,) = (item for item in memory.items if item.name == "MLA workspace")

    assert not workspace.counted
    assert workspace.size.likely == 8 * 4096 * 576 * 2


@pytest.mark.parametrize(
    ("vllm", "tokens", "cached"),
    [("0.18.0", 1920, 491_520), ("0.20.2", 1888, 483_328), ("0.27.1", 1920, 491_520), ("0.28.0", 1920, 67_200)],
)
def test_a_block_beside_states_is_as_long_as_a_state_is_large(vllm: str, tokens: int, cached: int) -> None:
    """So is, up to 0.27, what the workspace has for each of 256 requests."""
    found, state = model(KIMI), 3 * 3 * 4096 * 2 + 32 * 128 * 128 * 4
    laid = layout(found, deployment(vllm))
    memory = fit(found, deployment(vllm, max_num_seqs=256)).memory
    (workspace,) = (item for item in memory.items if item.name == "MLA workspace")

    assert (laid.state_bytes, laid.block_size, laid.groups) == (state, tokens, (2, 2, 2, 2))
    assert workspace.size.likely == cached * 576 * 2
