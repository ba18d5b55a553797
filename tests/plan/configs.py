"""Small configs of every architecture that plan knows, and safetensors files: true ones, and ones that lie."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vpatch.plan.architectures import ARCHITECTURES, KNOWN, Architecture

from tests.plan.drawn import BAILING

FULL, LINEAR = "full_attention", "linear_attention"


# The checkpoints' own code has their defaults.
_LING = [BAILING | dict(KNOWN[f"BailingMoe{kind}ForCausalLM"].defaults) for kind in ("", "V2")]

REQUIRED: dict[str, dict[str, Any]] = {
    "bailing_moe": _LING[0] | {"head_dim": 64},
    "bailing_moe_v2": _LING[1],
    "deepseek_v2": {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 6},
    "deepseek_v32": {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128},
    "glm4_moe": {"head_dim": 128},
    "glm4_moe_lite": {"first_k_dense_replace": 1},
    "minimax_m2": {"rotary_dim": 64, "scoring_func": "sigmoid"},
    "nemotron": {"num_key_value_heads": 32},
    "kimi_linear": {
        "linear_attn_config": {
            "kda_layers": [1, 2, 4],
            "full_attn_layers": [3],
            "num_heads": 16,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
        },
        "num_experts": 8,
        "num_experts_per_token": 2,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "moe_intermediate_size": 1024,
        "mla_use_nope": True,
        "model_max_length": 1_048_576,
        "dtype": "bfloat16",
    },
    "nemotron_h": {"hybrid_override_pattern": "ME*-", "use_conv_bias": True},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba", "mamba"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"], "conv_dim": 2048, "block_dim": 2048},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "conv"]},
    "zamba2": {"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "intermediate_size": 1024},
    "qwen3_vl_moe": {"norm_topk_prob": True},
}
"""Keys that vLLM requires, though plan has a default or does not read them."""

NESTED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mistral3": ("mistral", "pixtral", {"num_hidden_layers": 2}),
    "gemma3": ("gemma3_text", "siglip_vision_model", {"num_hidden_layers": 2, "vision_use_head": False}),
    "llama4": ("llama4_text", "llama4_vision_model", {"num_hidden_layers": 2}),
    "gemma4": ("gemma4_text", "gemma4_vision", {"num_hidden_layers": 2}),
    "qwen3_vl": ("qwen3_vl_text", "qwen3_vl", {"depth": 3, "deepstack_visual_indexes": [0, 1]}),
    "qwen3_vl_moe": ("qwen3_vl_moe_text", "qwen3_vl_moe", {"depth": 3, "deepstack_visual_indexes": [0]}),
}
"""The types of a model's decoder and of its vision tower, and a small shape of the tower, by the model's type."""


def config(architecture: Architecture, **text: Any) -> dict[str, Any]:
    """Return a config that leaves out all keys that have a default."""
    heads = {"num_attention_heads": 32, "hidden_size": 2048}
    text = {"num_hidden_layers": 4, **heads, **REQUIRED.get(architecture.model_type, {}), **text}
    head = {"architectures": [architecture.names[0]], "model_type": architecture.model_type}
    if not architecture.vision:
        return head | text
    kind = architecture.model_type
    decoder, tower, shape = NESTED.get(kind, (f"{kind}_text", kind, {"depth": 2}))
    # The class of Mistral 3's config says that heads are tied; of a real checkpoint, vLLM believes the tensors.
    untied = {"tie_word_embeddings": False} if kind == "mistral3" else {}
    return (
        head
        | untied
        | {"text_config": {"model_type": decoder, **text}, "vision_config": {"model_type": tower, **shape}}
    )


def named(name: str, **text: Any) -> dict[str, Any]:
    """Return a config of an architecture by its name."""
    return config(next(one for one in ARCHITECTURES if name in one.names), **text)


DELTA = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 12,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 96,
    "linear_conv_kernel_dim": 3,
    "head_dim": 64,
}
EQUAL = {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "enable_moe_block": True}
DEFAULTS = {one.names[0]: config(one) for one in ARCHITECTURES if one.names}
SAID = {
    "float32 state": named("Qwen3_5MoeForConditionalGeneration", mamba_ssm_dtype="float32", mtp_num_hidden_layers=1),
    "every third": named(
        "Qwen3_5ForConditionalGeneration", num_hidden_layers=7, full_attention_interval=3, dtype="bfloat16", **DELTA
    ),
    "layer_types": named(
        "Qwen3_5ForConditionalGeneration", layer_types=[LINEAR, FULL, FULL, LINEAR], mamba_ssm_dtype="bfloat16"
    ),
    "Next, said": named(
        "Qwen3NextForCausalLM", num_hidden_layers=5, layer_types=[FULL, *[LINEAR] * 4], mlp_only_layers=[1], **DELTA
    ),
    "Qwen2, tied": named(
        "Qwen2ForCausalLM",
        num_key_value_heads=4,
        sliding_window=32_768,
        use_sliding_window=False,
        max_window_layers=2,
        tie_word_embeddings=True,
        torch_dtype="float16",
    ),
    "Qwen3, odd": named("Qwen3ForCausalLM", head_dim=80, num_key_value_heads=8, vocab_size=1024, dtype="float32"),
    "Mistral, no window": named("MistralForCausalLM", sliding_window=None, head_dim=128, max_position_embeddings=777),
    "Qwen3, null": named("Qwen3ForCausalLM", num_key_value_heads=None, sliding_window=None),
    "Phi3, window": named("Phi3ForCausalLM", sliding_window=2047, original_max_position_embeddings=4096),
    "Qwen3, YaRN": named(
        "Qwen3ForCausalLM",
        max_position_embeddings=40_960,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768},
    ),
    "Llama, linear": named("LlamaForCausalLM", rope_scaling={"rope_type": "linear", "factor": 2.0}),
    "Llama 3": named(
        "LlamaForCausalLM",
        max_position_embeddings=131_072,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "Phi3, LongRoPE": named(
        "Phi3ForCausalLM",
        max_position_embeddings=131_072,
        original_max_position_embeddings=4096,
        sliding_window=None,
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32},
    ),
    "Llama, one KV head": named("LlamaForCausalLM", num_key_value_heads=1, head_dim=None, tie_word_embeddings=True),
    "experts": named(
        "Qwen3MoeForCausalLM", num_experts=9, moe_intermediate_size=96, decoder_sparse_step=2, head_dim=128
    ),
    "local experts": named("MixtralForCausalLM", num_local_experts=4, intermediate_size=512),
    "DeepSeek V2-Lite": named(
        "DeepseekV2ForCausalLM", q_lora_rank=None, first_k_dense_replace=1, moe_intermediate_size=512
    ),
    "DeepSeek, every second": named(
        "DeepseekV3ForCausalLM", moe_layer_freq=2, n_routed_experts=16, intermediate_size=1024, moe_intermediate_size=64
    ),
    "Kimi K2": named(
        "DeepseekV3ForCausalLM",
        model_type="kimi_k2",
        max_position_embeddings=131_072,
        n_routed_experts=12,
        moe_intermediate_size=64,
        num_nextn_predict_layers=0,
        rope_scaling={"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    ),
    "GLM-5.2": named("GlmMoeDsaForCausalLM", num_hidden_layers=8, index_topk_freq=4, index_skip_topk_offset=3),
    "Ministral 3": named("Mistral3ForConditionalGeneration")
    | {
        "text_config": {
            "model_type": "ministral3",
            "num_hidden_layers": 2,
            "hidden_size": 512,
            "num_attention_heads": 8,
        }
    },
    "Gemma 3 4B": named("Gemma3ForConditionalGeneration", sliding_window=1024),
    "Qwen2.5-VL, flat": named("Qwen2_5_VLForConditionalGeneration", use_sliding_window=False, num_key_value_heads=4),
    "Llama 4, some dense": named("Llama4ForCausalLM", interleave_moe_layer_step=2, attention_chunk_size=None),
    "Command R7B": named("Cohere2ForCausalLM", num_key_value_heads=8, sliding_window=512, num_hidden_layers=5),
    "Exaone 4": named("Exaone4ForCausalLM", sliding_window=None, num_key_value_heads=8, layer_types=[FULL] * 4),
    "Ernie 4.5, some dense": named("Ernie4_5_MoeForCausalLM", moe_layer_start_index=2, moe_num_experts=4, moe_k=2),
    "Gemma 4 31B": named("Gemma4ForCausalLM", num_hidden_layers=7, hidden_size_per_layer_input=0, **EQUAL),
    "Gemma 4 26B": named("Gemma4ForCausalLM", num_experts=4, top_k_experts=2, moe_intermediate_size=96, **EQUAL),
    "Gemma 4 E4B": named("Gemma4ForCausalLM", num_hidden_layers=12, num_kv_shared_layers=4),
    "GLM, two dense": named(
        "Glm4MoeForCausalLM", first_k_dense_replace=2, n_routed_experts=4, n_shared_experts=2, num_experts_per_tok=2
    ),
    "Nemotron 3": named(
        "NemotronHForCausalLM",
        num_hidden_layers=5,
        hybrid_override_pattern="MEM*E",
        mamba_num_heads=64,
        n_groups=4,
        ssm_state_size=64,
        mamba_ssm_cache_dtype="bfloat16",
        n_routed_experts=9,
        moe_intermediate_size=96,
        moe_shared_expert_intermediate_size=192,
        moe_latent_size=512,
    ),
    "Nemotron-H, dense": named(
        "NemotronHForCausalLM", hybrid_override_pattern="M-M*", mamba_head_dim=80, intermediate_size=512
    ),
    "Ling 2": named(
        "BailingMoeV2ForCausalLM",
        num_nextn_predict_layers=1,
        num_experts=8,
        first_k_dense_replace=2,
        moe_shared_expert_intermediate_size=768,
        tie_word_embeddings=True,
        use_qk_norm=True,
    ),
    "Kimi-Linear, some dense": named(
        "KimiLinearForCausalLM",
        first_k_dense_replace=2,
        num_shared_experts=1,
        intermediate_size=512,
        max_position_embeddings=777,
    ),
    "Zamba2, two blocks": named(
        "Zamba2ForCausalLM",
        num_hidden_layers=7,
        layers_block_type=["mamba", "hybrid", "mamba", "hybrid", "hybrid", "mamba", "hybrid"],
        num_mem_blocks=2,
        adapter_rank=32,
        use_shared_attention_adapter=True,
        n_mamba_heads=64,
        mamba_ngroups=2,
    ),
    "Nemotron 3, listed": named(
        "NemotronHForCausalLM",
        layers_block_type=["mamba", "moe", "attention", "mlp", "moe"],
        mtp_layers_block_type=["attention", "moe"],
        num_nextn_predict_layers=1,
        moe_shared_expert_intermediate_size=192,
    ),
    "Granite 4, dense": named(
        "GraniteMoeHybridForCausalLM",
        layer_types=["mamba", "mamba", "mamba", "attention"],
        num_local_experts=0,
        shared_intermediate_size=4096,
        mamba_n_heads=64,
        mamba_d_head=64,
        tie_word_embeddings=True,
    ),
    "Falcon-H1, expanded": named(
        "FalconH1ForCausalLM", mamba_d_ssm=None, mamba_n_heads=32, mamba_n_groups=2, head_dim=64
    ),
    "Jamba, dense": named("JambaForCausalLM", num_experts=1, mamba_d_state=8, mamba_dt_rank=96),
    "LFM2, by index": named(
        "Lfm2ForCausalLM",
        layer_types=None,
        full_attn_idxs=[1, 3],
        block_ff_dim=3000,
        block_ffn_dim_multiplier=1.5,
        block_multiple_of=64,
    ),
}
del SAID["Gemma 3 4B"]["text_config"]["num_attention_heads"]
for _key in ("num_hidden_layers", "hybrid_override_pattern"):
    del SAID["Nemotron 3, listed"][_key]
_FLAT = SAID["Qwen2.5-VL, flat"]  # as its checkpoints are
_FLAT |= _FLAT.pop("text_config") | {"model_type": "qwen2_5_vl", "tie_word_embeddings": True}
CONFIGS = DEFAULTS | SAID


def write(home: Path) -> None:
    """Write each config into a folder of its name below `home`."""
    for name, data in CONFIGS.items():
        (home / name).mkdir(parents=True)
        (home / name / "config.json").write_text(json.dumps(data))


SIZES = {"BF16": 2, "F8_E4M3": 1, "F32": 4, "U8": 1}


def header(tensors: Mapping[str, tuple[str, list[int]]]) -> dict[str, Any]:
    """Return the header of tensors in a row, each given by its dtype and shape."""
    found: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + SIZES[dtype] * math.prod(shape)
        found[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    return found


def file(described: Mapping[str, Any], data: int | None = None) -> bytes:
    """Return a file with this header and so many bytes of data, by default as many as the header says."""
    text = json.dumps(described).encode()
    if data is None:
        data = max((one["data_offsets"][1] for name, one in described.items() if name != "__metadata__"), default=0)
    return len(text).to_bytes(8, "little") + text + bytes(data)
