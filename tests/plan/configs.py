"""Small configs of every architecture that plan knows, and safetensors files: true ones, and ones that lie."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vpatch.plan.architectures import ARCHITECTURES, KNOWN, Architecture

from tests.plan.drawn import BAILING

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


DEFAULTS = {one.names[0]: config(one) for one in ARCHITECTURES if one.names}
# Keys that are given, of an architecture by its name.
GIVEN = {
    case: named(name, **text)
    for case, (name, text) in json.loads(Path(__file__).with_name("variants.json").read_text()).items()
}
MINISTRAL = {"model_type": "ministral3", "num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 8}
GIVEN["Ministral 3"] = named("Mistral3ForConditionalGeneration") | {"text_config": MINISTRAL}
del GIVEN["Gemma 3 4B"]["text_config"]["num_attention_heads"]
for _key in ("num_hidden_layers", "hybrid_override_pattern"):
    del GIVEN["Nemotron 3, listed"][_key]
_FLAT = GIVEN["Qwen2.5-VL, flat"]  # as its checkpoints are
_FLAT |= _FLAT.pop("text_config") | {"model_type": "qwen2_5_vl", "tie_word_embeddings": True}
CONFIGS = DEFAULTS | GIVEN


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
