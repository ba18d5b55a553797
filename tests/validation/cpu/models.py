"""config.json files of models with the shapes of real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def _layer_types(count: int) -> list[str]:
    return ["full_attention" if index % 4 == 3 else "linear_attention" for index in range(count)]


def _hybrid(kind: str, architecture: str, layers: int, **text: Any) -> dict[str, Any]:
    shared = {
        "model_type": f"{kind}_text",
        "num_hidden_layers": layers,
        "layer_types": _layer_types(layers),
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "max_position_embeddings": 262_144,
        "vocab_size": 248_320,
        "dtype": "bfloat16",
    }
    return {
        "architectures": [architecture],
        "model_type": kind,
        "text_config": shared | text,
        "vision_config": {"model_type": kind},
    }


CONFIGS: dict[str, dict[str, Any]] = {
    # Qwen3.6-35B-A3B: attention at layers 3, 7, ... 39. A Mamba page is 2 MiB of state and 48 KiB of convolution.
    "35B": _hybrid(
        "qwen3_5_moe",
        "Qwen3_5MoeForConditionalGeneration",
        layers=40,
        hidden_size=2048,
        num_attention_heads=16,
        num_key_value_heads=2,
        linear_num_value_heads=32,
    ),
    # Qwen3.6-27B: attention at layers 3, 7, ... 63.
    "27B": _hybrid(
        "qwen3_5",
        "Qwen3_5ForConditionalGeneration",
        layers=64,
        hidden_size=5120,
        intermediate_size=17_408,
        num_attention_heads=24,
        num_key_value_heads=4,
        linear_num_value_heads=48,
    ),
    # Qwen3-0.6B: 28 layers, all attention.
    "dense": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 40_960,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    },
    # Names its layers by `layers_block_type`: attention at 4, 12, 20, 28.
    "Jamba": {
        "architectures": ["JambaForCausalLM"],
        "model_type": "jamba",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "use_mamba_kernels": False,
        "dtype": "bfloat16",
    },
}


def write(folder: Path) -> Path:
    """Write every model into a folder of its name below `folder`; return `folder`."""
    for name, config in CONFIGS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    return folder
