"""What vLLM does with `--kv-cache-dtype-skip-layers` and TurboQuant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.validation.cpu.probing import engine_config, layers_of, one_rank, outcome

# The dense model has 28 layers: 0, 1, 26 and 27 are added.
INDICES = {
    "none": [],
    "one": ["5"],
    "several": ["12", "5", "9", "27", "5"],
    "signs and zeros": ["-1", "+4", "06", " 8 ", "1_0"],
}
NAMES = {
    "a name": ["sliding_window"],
    "names and indices": ["sliding_window", "12", "chunked", "5"],
    "no integers": ["²", "5.0", "", "0x7", "two", "9" * 5000],
}

KINDS = ["full_attention" if index % 4 == 3 else "sliding_attention" for index in range(12)]
WINDOWED = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": len(KINDS),
    "layer_types": KINDS,
    "sliding_window": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "max_position_embeddings": 32_768,
    "vocab_size": 1000,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "dtype": "bfloat16",
}
SKIPPED = {
    "by name": ["sliding_window"],
    "by index": [str(index) for index, kind in enumerate(KINDS) if kind == "sliding_attention"],
}


def configured(model: str, skip: list[str]) -> Any:
    """Make the config as `vllm serve MODEL --kv-cache-dtype-skip-layers ...` does."""
    options = {"kv_cache_dtype": "turboquant_4bit_nc", "kv_cache_dtype_skip_layers": skip}
    return engine_config(model, enforce_eager=True, language_model_only=True, **options)


def listed(found: dict[str, Any], model: str, skip: list[str]) -> None:
    """Record the list, and what vLLM computes from it."""
    config = configured(model, skip)
    found["skip_layers"] = config.cache_config.kv_cache_dtype_skip_layers
    found["hash"], found["cache hash"] = config.compute_hash(), config.cache_config.compute_hash()


def layered(found: dict[str, Any], model: str, skip: list[str]) -> None:
    """Record what every layer keeps in its cache."""
    config = configured(model, skip)
    layers = layers_of(config)
    found["caches"] = {
        name: [layer.kv_cache_dtype, str(layer.get_kv_cache_spec(config))] for name, layer in layers.items()
    }


def main(home: str, folder: str) -> dict[str, Any]:
    import torch

    torch.ops._C.gelu_tanh_and_mul = None  # looked up, but not called
    one_rank(home)
    windowed = Path(home, "windowed")
    windowed.mkdir()
    (windowed / "config.json").write_text(json.dumps(WINDOWED))
    dense, hybrid = str(Path(folder, "dense")), str(Path(folder, "35B"))
    return {
        "dense": {name: outcome(listed, dense, skip) for name, skip in (INDICES | NAMES).items()},
        "hybrid": {name: outcome(listed, hybrid, skip) for name, skip in NAMES.items()},
        "windowed": {name: outcome(layered, str(windowed), skip) for name, skip in SKIPPED.items()},
    }
