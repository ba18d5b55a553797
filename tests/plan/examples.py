"""Models and deployments to plan with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from packaging.version import Version
from vpatch.plan import GIB
from vpatch.plan.architectures import FULL, Attention, Model, Weights
from vpatch.plan.deployment import Deployment, gpu
from vpatch.plan.lookup import load

MOE, DENSE_HYBRID = "Qwen/Qwen3.6-35B-A3B", "Qwen/Qwen3.6-27B"
PACKED = "inferRouter/Qwen3.6-35B-A3B-NVFP4"


def hybrid(name: str = PACKED, gib: float = 21.88, **said: Any) -> Model:
    """Give a recorded model that weighs so much."""
    model = load(name)
    return replace(model, weights=weighing(gib, len(model.layers)), **said)


def dense(layers: int = 28, gib: float = 1.2, **said: Any) -> Model:
    """Give a model of the shape of Qwen3-0.6B."""
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
            **said,
        }
    )


def weighing(gib: float, layers: int) -> Weights:
    """Give weights of so many GiB, all in the layers."""
    each, rest = divmod(int(gib * GIB), layers)
    return Weights(layers=(each + rest, *[each] * (layers - 1)), source="said by the test")


def deployment(vllm: str = "0.20.2", card: str = "RTX 5090", **said: Any) -> Deployment:
    """Give a deployment; what is not said is the preset's at 32K."""
    usual = {
        "max_model_len": 32_768,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 4096,
        "gpu_memory_utilization": 0.93,
        "enable_prefix_caching": False,
    }
    return Deployment(**{"vllm": Version(vllm), "gpu": gpu(card), **usual, **said})
