"""Configs of EAGLE drafts that have a head of their own and pass the target's quantization config to it."""

from __future__ import annotations

from typing import Any

from tests.validation.cpu.head_cases import BARE, config, group
from tests.validation.cpu.head_models import VOCAB, qwen3
from tests.validation.cpu.head_unpassed import SHARED

DRAFT = SHARED | {"num_hidden_layers": 1, "draft_vocab_size": VOCAB, "rms_norm_eps": 1e-6, "hidden_act": "silu"}


def minicpm(quantization: Any | None = None) -> dict[str, Any]:
    """A MiniCPM draft. The class of its config comes with the checkpoint, so a Llama's stands in for it."""
    return _quantized(
        DRAFT
        | {
            "architectures": ["MiniCPMForCausalLM"],
            "model_type": "llama",
            "scale_emb": 12,
            "scale_depth": 1.4,
            "mup_denominator": 32,
            "dim_model_base": 256,
        },
        quantization,
    )


def deepseek(quantization: Any | None = None) -> dict[str, Any]:
    return _quantized(
        DRAFT
        | {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "num_key_value_heads": 4,
            "kv_lora_rank": 64,
            "q_lora_rank": 64,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 128,
            "first_k_dense_replace": 99,
        },
        quantization,
    )


def _quantized(made: dict[str, Any], quantization: Any | None) -> dict[str, Any]:
    return made | ({"quantization_config": quantization} if quantization else {})


OTHERS = "re:.*(layers|_proj).*"


def fp8(kind: str, name: str = BARE) -> Any:
    """A quantization config that covers only the head."""
    return config(group(name, kind=kind), ignore=(OTHERS,))


PLAIN = config(group("another", kind="channel"), ignore=(OTHERS, BARE))
TARGETS = {"plain": qwen3(PLAIN)} | {kind: qwen3(fp8(kind)) for kind in ("block", "channel")}
CLASSES = {"EagleMiniCPMForCausalLM": minicpm, "EagleDeepseekV3ForCausalLM": deepseek}
RENAMED = "model.unembedding"
"""A checkpoint's name for the head, which the model class is changed to map to `lm_head`. vLLM maps dotted names."""

OWN = {"bf16": None, "channel": fp8("channel"), "renamed": fp8("channel", RENAMED)}
DRAFTS = {f"{name}, {own}": make(quantization) for name, make in CLASSES.items() for own, quantization in OWN.items()}
REPLACED = ("nothing", "model_config", "model_config and quant_config")
"""Parts of the vLLM config that runners replace before they build a draft."""

REPLACEABLE = "EagleMiniCPMForCausalLM"
