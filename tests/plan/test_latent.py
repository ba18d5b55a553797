"""Multi-head latent attention (MLA): DeepSeek V2 to V3.2, Kimi K2, GLM-4.7-Flash and GLM-5, by release and GPU."""

from __future__ import annotations

from typing import Any

import pytest
from vpatch.plan import GIB, Model
from vpatch.plan.checkpoint import model_of
from vpatch.plan.defaults import gpu
from vpatch.plan.deployment import Deployment, Gpu
from vpatch.plan.fit import fit
from vpatch.plan.weights import with_total

from tests.plan.configs import named
from tests.plan.examples import traits, weights_of

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
