"""The architectures whose memory plan knows layer by layer, as data.

Defaults are what transformers (4.57, 5.20) and vLLM's own config classes take for keys that a config.json leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_INTERVAL = 4
"""One layer in so many of a Gated DeltaNet hybrid is full attention, where `full_attention_interval` is left out."""


@dataclass(frozen=True)
class Architecture:
    """What a config of one architecture means.

    `defaults` holds for keys that are left out; without one for `num_key_value_heads` there are as many as heads,
    without one for `head_dim` it is hidden size / heads; a 0 says that vLLM itself does not do without. `window` is the
    default of `sliding_window`, which counts only with `use_sliding_window` where that is `switched`. `draft` is the
    key that counts layers of multi-token prediction. `reads_state_dtype`: the state's dtype is what `mamba_ssm_dtype`
    says; else it is the model's. `gated`: queries come with an output gate of their size. `shared` is the key that says
    how wide, or how many, shared experts are.
    """

    names: tuple[str, ...]
    model_type: str
    defaults: Mapping[str, int] = field(default_factory=dict)
    hybrid: bool = False
    experts: bool = False
    tied: bool = False
    vision: bool = False
    window: int = 0
    switched: bool = False
    draft: str = ""
    reads_state_dtype: bool = False
    gated: bool = False
    shared: str = ""


_DELTA = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "head_dim": 256,
    "max_position_embeddings": 32_768,
}
_QWEN3_5 = _DELTA | {"num_key_value_heads": 4, "intermediate_size": 12_288, "vocab_size": 248_320}
_QWEN3_5_MOE = _DELTA | {
    "num_key_value_heads": 2,
    "vocab_size": 248_320,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
_QWEN3_NEXT = _QWEN3_5_MOE | {
    "vocab_size": 151_936,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "intermediate_size": 5632,
}
_SHARED = "shared_expert_intermediate_size"


def _sizes(vocab: int, positions: int, mlp: int, kv_heads: int = 0, head_dim: int = 0) -> dict[str, int]:
    sizes = {"vocab_size": vocab, "max_position_embeddings": positions, "intermediate_size": mlp}
    return sizes | {k: v for k, v in (("num_key_value_heads", kv_heads), ("head_dim", head_dim)) if v}


def _experts(count: int, per_token: int, width: int = 0, shared: int = 0) -> dict[str, int]:
    sizes = {"num_experts": count, "num_experts_per_tok": per_token}
    return sizes | {k: v for k, v in (("moe_intermediate_size", width), (_SHARED, shared)) if v}


ARCHITECTURES = (
    Architecture(
        ("Qwen3_5ForConditionalGeneration",),
        "qwen3_5",
        _QWEN3_5,
        hybrid=True,
        vision=True,
        draft="mtp_num_hidden_layers",
        reads_state_dtype=True,
        gated=True,
    ),
    Architecture(
        ("Qwen3_5ForCausalLM",),
        "qwen3_5_text",
        _QWEN3_5,
        hybrid=True,
        draft="mtp_num_hidden_layers",
        reads_state_dtype=True,
        gated=True,
    ),
    Architecture(
        ("Qwen3_5MoeForConditionalGeneration",),
        "qwen3_5_moe",
        _QWEN3_5_MOE,
        hybrid=True,
        experts=True,
        vision=True,
        draft="mtp_num_hidden_layers",
        reads_state_dtype=True,
        gated=True,
        shared=_SHARED,
    ),
    Architecture(
        ("Qwen3_5MoeForCausalLM",),
        "qwen3_5_moe_text",
        _QWEN3_5_MOE,
        hybrid=True,
        experts=True,
        draft="mtp_num_hidden_layers",
        reads_state_dtype=True,
        gated=True,
        shared=_SHARED,
    ),
    Architecture(
        ("Qwen3NextForCausalLM",),
        "qwen3_next",
        _QWEN3_NEXT,
        hybrid=True,
        experts=True,
        draft="num_nextn_predict_layers",
        gated=True,
        shared=_SHARED,
    ),
    Architecture(("LlamaForCausalLM", "LLaMAForCausalLM"), "llama", _sizes(32_000, 2048, 11_008)),
    Architecture(("MistralForCausalLM",), "mistral", _sizes(32_000, 131_072, 14_336, kv_heads=8), window=4096),
    Architecture(("Qwen2ForCausalLM",), "qwen2", _sizes(151_936, 32_768, 22_016, kv_heads=32), switched=True),
    Architecture(
        ("Qwen3ForCausalLM",), "qwen3", _sizes(151_936, 32_768, 22_016, kv_heads=32, head_dim=128), switched=True
    ),
    Architecture(
        ("Qwen2MoeForCausalLM",),
        "qwen2_moe",
        _sizes(151_936, 32_768, 5632, kv_heads=16) | _experts(60, 4, 1408, 5632),
        experts=True,
        switched=True,
        shared=_SHARED,
    ),
    Architecture(
        ("Qwen3MoeForCausalLM",),
        "qwen3_moe",
        _sizes(151_936, 32_768, 6144, kv_heads=4) | _experts(128, 8, 768),
        experts=True,
        switched=True,
    ),
    Architecture(
        ("MixtralForCausalLM",),
        "mixtral",
        _sizes(32_000, 131_072, 14_336, kv_heads=8) | _experts(8, 2),
        experts=True,
    ),
    Architecture(("Phi3ForCausalLM",), "phi3", _sizes(32_064, 4096, 8192)),
    Architecture(("Glm4ForCausalLM",), "glm4", _sizes(151_552, 131_072, 13_696, kv_heads=2, head_dim=128)),
    Architecture(
        ("Glm4MoeForCausalLM",),
        "glm4_moe",
        _sizes(151_552, 131_072, 10_944, kv_heads=8)
        | _experts(128, 8, 1408)
        | {"n_shared_experts": 1, "first_k_dense_replace": 1, "head_dim": 0},
        experts=True,
        draft="num_nextn_predict_layers",
        shared="n_shared_experts",
    ),
    Architecture(("GemmaForCausalLM",), "gemma", _sizes(256_000, 8192, 24_576, kv_heads=16, head_dim=256), tied=True),
    Architecture(("GraniteForCausalLM",), "granite", _sizes(32_000, 2048, 11_008)),
)
KNOWN = {name: architecture for architecture in ARCHITECTURES for name in architecture.names}
