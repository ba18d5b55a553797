"""Small models that do not pass their quantization config to the head, with an FP8 head; and an EAGLE draft."""

from __future__ import annotations

from typing import Any

from tests.validation.cpu.head_cases import BARE, config, group
from tests.validation.cpu.head_models import HIDDEN, VOCAB, qwen3

EXPERTS = "re:.*(experts|router)"
FP8_HEAD = config(group("Linear", kind="channel"), group(BARE), ignore=(EXPERTS, "re:.*mixer.*", "re:.*mamba.*"))
BY_EXPRESSION = config(group("Linear", kind="channel"), group("re:.*lm_head"), ignore=(EXPERTS,))
BF16_HEAD = config(group("Linear", kind="channel"), ignore=(EXPERTS, "re:.*mixer.*", "re:.*mamba.*", BARE))

SHARED = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def gpt_oss(quantization: Any) -> dict[str, Any]:
    """A GPT-OSS whose config quantizes only the head."""
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 128,
        "quantization_config": quantization,
        "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    } | SHARED


def falcon_h1(quantization: Any, **more: Any) -> dict[str, Any]:
    return (
        {
            "architectures": ["FalconH1ForCausalLM"],
            "model_type": "falcon_h1",
            "quantization_config": quantization,
            "mamba_d_ssm": 256,
            "mamba_n_heads": 4,
            "mamba_d_head": 64,
            "mamba_n_groups": 1,
            "mamba_d_state": 16,
            "mamba_expand": 1,
        }
        | SHARED
        | more
    )


def jamba(quantization: Any) -> dict[str, Any]:
    """A Jamba without experts."""
    return {
        "architectures": ["JambaForCausalLM"],
        "model_type": "jamba",
        "quantization_config": quantization,
        "num_experts": 1,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 16,
        "mamba_dt_rank": 16,
    } | SHARED


def ernie(quantization: Any, **more: Any) -> dict[str, Any]:
    """An Ernie 4.5 with an MTP module, whose class ties the head by hand."""
    return (
        {
            "architectures": ["Ernie4_5ForCausalLM"],
            "model_type": "ernie4_5",
            "quantization_config": quantization,
            "num_nextn_predict_layers": 1,
            "use_bias": False,
        }
        | SHARED
        | more
    )


def mamba2(quantization: Any) -> dict[str, Any]:
    return {
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "quantization_config": quantization,
        "num_heads": 8,
        "head_dim": 64,
        "n_groups": 1,
        "state_size": 16,
        "expand": 2,
        **{
            name: SHARED[name]
            for name in ("vocab_size", "hidden_size", "num_hidden_layers", "dtype", "tie_word_embeddings")
        },
    }


def step3(quantization: Any) -> dict[str, Any]:
    """A Step3 without its vision tower."""
    return {
        "architectures": ["Step3TextForCausalLM"],
        "model_type": "step3_text",
        "quantization_config": quantization,
        "moe_layers_enum": "99",
        "num_attention_groups": 1,
        "share_q_dim": 64,
    } | SHARED


UNPASSED: dict[str, dict[str, Any]] = {
    "GPT-OSS": gpt_oss(FP8_HEAD),
    "GPT-OSS, re:": gpt_oss(BY_EXPRESSION),
    "GPT-OSS, bf16 head": gpt_oss(BF16_HEAD),
    "Falcon-H1": falcon_h1(FP8_HEAD),
    "Falcon-H1, tied": falcon_h1(FP8_HEAD, tie_word_embeddings=True),
    "Jamba": jamba(FP8_HEAD),
    "Mamba2": mamba2(FP8_HEAD),
    "Step3": step3(FP8_HEAD),
    "Ernie": ernie(FP8_HEAD),
    "Ernie, tied": ernie(FP8_HEAD, tie_word_embeddings=True),
}
MTP = {name + ", MTP": (name, "ErnieMTPModel") for name in ("Ernie", "Ernie, tied")}

TARGET = qwen3(config(group("Linear", kind="channel"), group(BARE)))


def llama4_draft(quantization: Any | None = None) -> dict[str, Any]:
    """An EAGLE draft with a head of its own, in bfloat16 or quantized by its own checkpoint's config."""
    made = {
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        "draft_vocab_size": VOCAB,
        "intermediate_size_mlp": 256,
        "num_local_experts": 1,
        "moe_layers": [],
        "interleave_moe_layer_step": 0,
        "attn_temperature_tuning": False,
        "num_hidden_layers": 1,
        "no_rope_layers": [0],
        "yoco_global_kv_layer": None,
        "yoco_local_kv_layer": None,
    }
    return SHARED | made | ({"quantization_config": quantization} if quantization else {})


TARGETS = {"FP8": TARGET, "bf16": qwen3(BF16_HEAD)}
DRAFTS = {"bf16": llama4_draft(), "FP8": llama4_draft(FP8_HEAD)}
