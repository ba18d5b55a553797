"""Models and deployments to make commands of: those of the presets, and others, whose insides do not matter."""

from __future__ import annotations

from typing import Any

from packaging.version import Version
from vpatch.plan import GIB
from vpatch.plan.architectures import FULL, Attention, Model
from vpatch.plan.deployment import Deployment, Gpu, Preset, gpu
from vpatch.plan.lookup import load

GPU = Gpu("a GPU", 32 * GIB)


def model(name: str, revision: str | None = None) -> Model:
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


def deployment(vllm: str = "0.20.2", **options: Any) -> Deployment:
    fixed: dict[str, Any] = {"vllm": Version(vllm), "gpu": GPU, "max_model_len": 32768}
    return Deployment(**fixed | options)


def of(preset: Preset, **given: Any) -> tuple[Model, Deployment]:
    return load(preset.model, preset.revision), preset.deployment(gpu(preset.gpu), given)
