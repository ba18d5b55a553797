"""Models of many families with the widths of published checkpoints and few layers, loaded without weights.

They show what a batch takes in each family, which does not depend on the number of layers. The first start of an
engine compiles the model, and takes more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.validation.gpu import full_size
from tests.validation.gpu.models import write_config


def shortened(name: str, layers: int) -> dict[str, Any]:
    """Return the config of a checkpoint of full size with so many layers."""
    made = full_size.config(full_size.FULL_SIZE[name])
    text = made["text_config"]
    kinds = text["layer_types"][:layers] if "layer_types" in text else None
    fewer = {"num_hidden_layers": layers} | ({"layer_types": kinds} if kinds else {})
    return made | {"text_config": text | fewer}


MAMBA2 = {
    "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_chunk_size": 256, "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 1,
    "moe_layer_freq": 1, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "hidden_act": "silu", "norm_topk_prob": True, "tie_word_embeddings": False,
}  # fmt: skip
DELTA: dict[str, dict[str, Any]] = {
    "qwen3-next-80b-a3b": {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048,
        "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "intermediate_size": 5120, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "num_experts": 512, "num_experts_per_tok": 10, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "partial_rotary_factor": 0.25, "vocab_size": 151936, "max_position_embeddings": 262144, "rope_theta": 1e7,
        "tie_word_embeddings": False, "hidden_act": "silu",
    },
    "qwen3.6-27b-text": shortened("qwen3.6-27b", 4),
}  # fmt: skip
"""Configs of models with Gated DeltaNet, by the name of the folder that an engine loads."""

STATES: dict[str, dict[str, Any]] = {
    "nemotron-3-nano": {
        "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "num_hidden_layers": 7,
        "hybrid_override_pattern": "MEMEM*E", "hidden_size": 2688, "intermediate_size": 1856,
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "attention_head_dim": 128,
        "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
        "chunk_size": 128, "n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 1,
        "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "topk_group": 1,
        "max_position_embeddings": 262144, "vocab_size": 131072, "tie_word_embeddings": False,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "layer_norm_epsilon": 1e-5,
    },
    "falcon-h1-7b": {
        "architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "hidden_size": 3072,
        "num_hidden_layers": 4, "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128,
        "intermediate_size": 12288, "mamba_d_ssm": 3072, "mamba_d_state": 256, "mamba_n_heads": 24,
        "mamba_d_head": 128, "vocab_size": 130048, "max_position_embeddings": 262144, "mamba_rms_norm": False,
        "mamba_norm_before_gate": False, "projectors_bias": False, "tie_word_embeddings": False, **MAMBA2,
    },
    "jamba-mini": {
        "architectures": ["JambaForCausalLM"], "model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 8,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "num_experts": 16,
        "num_experts_per_tok": 2, "attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2,
        "expert_layer_offset": 1, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256,
        "vocab_size": 65536, "max_position_embeddings": 262144, "tie_word_embeddings": False,
    },
    "lfm2-8b-a1b": {
        "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "hidden_size": 2048, "num_hidden_layers": 6,
        "layer_types": ["conv", "conv", "full_attention"] * 2, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_experts": 32, "num_experts_per_tok": 4,
        "num_dense_layers": 2, "norm_topk_prob": True, "use_expert_bias": True, "routed_scaling_factor": 1.0,
        "vocab_size": 65536, "max_position_embeddings": 128000, "conv_L_cache": 3, "conv_bias": False,
    },
}  # fmt: skip
"""Configs of models with other states."""

OTHERS: dict[str, dict[str, Any]] = {
    "deepseek-v2-lite": DEEPSEEK | {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048,
        "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None,
        "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
        "num_experts_per_tok": 6, "vocab_size": 102400, "n_group": 1, "topk_group": 1, "scoring_func": "softmax",
        "topk_method": "greedy",
    },
    "deepseek-v3": DEEPSEEK | {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
        "num_hidden_layers": 3, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "vocab_size": 129280, "n_group": 8, "topk_group": 4, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 0,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
        "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936,
        "max_position_embeddings": 40960, "rope_theta": 1e6, "tie_word_embeddings": False, "hidden_act": "silu",
    },
    "gemma-3-27b": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 5376,
        "num_hidden_layers": 6, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
        "intermediate_size": 21504, "sliding_window": 1024, "query_pre_attn_scalar": 168, "vocab_size": 262208,
        "max_position_embeddings": 131072, "tie_word_embeddings": True,
    },
    "mistral-small-24b": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 5120,
        "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 32768, "vocab_size": 131072, "max_position_embeddings": 131072, "rope_theta": 1e9,
        "sliding_window": None, "tie_word_embeddings": False, "hidden_act": "silu",
    },
    "command-r7b": {
        "architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "hidden_size": 4096, "num_hidden_layers": 4,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336,
        "sliding_window": 4096, "layer_types": [*["sliding_attention"] * 3, "full_attention"], "vocab_size": 256000,
        "max_position_embeddings": 132096, "logit_scale": 0.25, "tie_word_embeddings": True, "hidden_act": "silu",
    },
    "llama-4-scout": {
        "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "hidden_size": 5120,
        "num_hidden_layers": 4, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 16, "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "vocab_size": 202048,
        "max_position_embeddings": 1048576, "no_rope_layers": [1, 1, 1, 0], "use_qk_norm": True,
        "tie_word_embeddings": False, "hidden_act": "silu",
    },
    "ernie-4.5-21b-a3b": {
        "architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "hidden_size": 2560,
        "num_hidden_layers": 4, "num_attention_heads": 20, "num_key_value_heads": 4, "intermediate_size": 12288,
        "moe_intermediate_size": 1536, "moe_num_experts": 64, "moe_k": 6, "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 1, "vocab_size": 103424,
        "max_position_embeddings": 131072, "tie_word_embeddings": True, "use_bias": False, "hidden_act": "silu",
    },
}  # fmt: skip

FAMILIES = DELTA | STATES | OTHERS
AGAIN = ("qwen3-next-80b-a3b", "qwen3.6-27b-text", "gemma-3-27b", "llama-4-scout")
"""Models that are started twice: the second time, the compiled code is in vLLM's cache."""


def config(name: str) -> dict[str, Any]:
    """Return the config.json of a model."""
    return {"torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2} | FAMILIES[name]


def write(root: Path) -> None:
    """Write every model's folder."""
    for folder in FAMILIES:
        write_config(root / folder, config(folder))
