"""Models and deployments to plan with, and what vLLM printed of deployments that ran.

Source of the latter: the model card of inferRouter/Qwen3.6-35B-A3B-NVFP4, "VRAM and concurrency (RTX 5090 32 GB)" and
"Scaling up to 262 K context"; that of ig1/Qwen3.5-35B-A3B-NVFP4, "GPU Memory Utilization Guide".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version
from vpatch.plan import FULL, GIB, Attention, Model, Weights
from vpatch.plan.defaults import Preset, gpu
from vpatch.plan.deployment import Deployment, Gpu, Release, release_of
from vpatch.plan.models import load

from tests.plan.configs import named

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

MOE, DENSE_HYBRID = "Qwen/Qwen3.6-35B-A3B", "Qwen/Qwen3.6-27B"
PACKED = "inferRouter/Qwen3.6-35B-A3B-NVFP4"
FOUR_BITS = "turboquant_4bit_nc"


def hybrid(name: str = PACKED, gib: float = 21.88, **given: Any) -> Model:
    """Return a recorded model with weights of so many GiB."""
    model = load(name)
    return replace(model, weights=weighing(gib, len(model.layers)), **given)


def dense(layers: int = 28, gib: float = 1.2, **given: Any) -> Model:
    """Return a model of the shape of Qwen3-0.6B."""
    return Model(
        **{
            "name": "Qwen/Qwen3-0.6B",
            "architecture": "Qwen3ForCausalLM",
            "layers": (FULL,) * layers,
            "attention": Attention(16, 8, 128),
            "hidden_size": 1024,
            "vocab_size": 151_936,
            "max_position_embeddings": 40_960,
            "intermediate_size": 3072,
            "weights": weighing(gib, layers),
            **given,
        }
    )


def weights_of(model: Model) -> Weights:
    """Return the weights of a model, which must be known."""
    assert model.weights
    return model.weights


def weighing(gib: float, layers: int) -> Weights:
    """Return weights of so many GiB, all in the layers."""
    each, rest = divmod(int(gib * GIB), layers)
    return Weights(layers=(each + rest, *[each] * (layers - 1)), source="said by the test")


def deployment(vllm: str = "0.20.2", card: str = "RTX 5090", **given: Any) -> Deployment:
    """Return a deployment with the options of the preset for 32K, unless given."""
    usual = {
        "max_model_len": 32_768,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 4096,
        "gpu_memory_utilization": 0.93,
        "enable_prefix_caching": False,
    }
    return Deployment(**{"release": traits(vllm), "gpu": gpu(card), **usual, **given})


def traits(vllm: str) -> Release:
    """Return the release of a version."""
    return release_of(Version(vllm))


GPU = Gpu("a GPU", 32 * GIB)


def bare_model(name: str, revision: str | None = None) -> Model:
    return Model(
        name,
        "Qwen3_5MoeForConditionalGeneration",
        (FULL,),
        Attention(heads=16, kv_heads=2, head_size=256),
        hidden_size=2048,
        vocab_size=248_320,
        max_position_embeddings=262_144,
        revision=revision,
    )


def bare_deployment(vllm: str = "0.20.2", **options: Any) -> Deployment:
    fixed: dict[str, Any] = {"release": traits(vllm), "gpu": GPU, "max_model_len": 32768}
    return Deployment(**fixed | options)


def preset_deployment(preset: Preset, **given: Any) -> tuple[Model, Deployment]:
    return load(preset.model, preset.revision), preset.deployment(gpu(preset.gpu), given)


@dataclass(frozen=True)
class Printed:
    """A row: its preset, sizes in GiB, and the tokens and the concurrency that vLLM printed."""

    preset: str
    weights: float
    kv_cache: float
    tokens: int
    concurrency: float


# The card calls this figure "GPU KV cache": slots, of all groups together.
AT_32K = (
    Printed("qwen3.6-35b-5090-32k-fp8kv", 21.88, 4.63, 119_472, 12.16),
    Printed("qwen3.6-35b-5090-32k", 21.96, 4.94, 249_856, 22.45),
    Printed("qwen3.6-35b-5090-32k-fp8head-fp8kv", 21.40, 5.10, 132_048, 13.42),
    Printed("qwen3.6-35b-5090-32k-fp8head", 21.48, 5.41, 274_432, 24.55),
)

# Here it is concurrency times length.
FP8_AT_262K = Printed("qwen3.6-35b-5090-262k-fp8kv", 21.88, 4.97, 492_512, 1.88)
TURBOQUANT_AT_262K = Printed("qwen3.6-35b-5090-262k", 21.96, 5.48, 1_022_361, 3.90)

# --gpu-memory-utilization: estimated context.
SHARES = {
    "qwen3.5-35b-5090-desktop-conservative": (0.885, 12_500),
    "qwen3.5-35b-5090-desktop-recommended": (0.905, 19_500),
    "qwen3.5-35b-5090-desktop-aggressive": (0.926, 28_000),
    "qwen3.5-35b-5090-headless": (0.956, 40_000),
}
