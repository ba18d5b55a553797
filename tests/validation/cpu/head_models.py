"""Small models with a head like that of a big one, each as a config.json: Qwen3.5 built like Qwen3.6-35B-A3B-NVFP4."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.validation.cpu.head_cases import BARE, config, group, nvfp4

VOCAB, HIDDEN = 1000, 256

SHARED = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "mtp_num_hidden_layers": 1,
    "max_position_embeddings": 2048,
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
VISION = {"model_type": "qwen3_5", "depth": 1, "hidden_size": 64, "num_heads": 2, "out_hidden_size": HIDDEN}

# Unlike in the big model, experts are not quantized: their kernels are not available here.
INSIDE = ("re:.*visual.*", "re:.*linear_attn.*", "re:.*mlp.gate$", "re:.*mlp.experts.*", "re:.*shared_expert_gate$")


def fp8_head(target: str = BARE) -> Any:
    """Return the quantization config of the `fp8-head` branch: NVFP4 inside, the head in FP8 blocks."""
    return config(nvfp4("Linear"), group(target), ignore=(*INSIDE, "re:^mtp.*"))


BF16_HEAD = config(nvfp4("Linear"), ignore=(*INSIDE, "re:^mtp.*", BARE))


def qwen3_5(quantization: Any, **text: Any) -> dict[str, Any]:
    """Return the config of a multimodal Qwen3.5."""
    tied = {"tie_word_embeddings": text.get("tie_word_embeddings", False)}
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {"model_type": "qwen3_5_text"} | SHARED | text,
        "vision_config": VISION,
        "quantization_config": quantization,
    } | tied


def qwen3_next(quantization: Any) -> dict[str, Any]:
    """Return the config of a Qwen3-Next."""
    return (
        {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "quantization_config": quantization}
        | SHARED
        | EXPERTS
    )


def qwen3(quantization: Any) -> dict[str, Any]:
    """Return the config of a dense Qwen3, one of the many models that pass their quantization config to the head."""
    architecture = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "quantization_config": quantization}
    return architecture | {name: value for name, value in SHARED.items() if not name.startswith(("layer_", "linear_"))}


MODELS: dict[str, dict[str, Any]] = {
    "Qwen3.5": qwen3_5(fp8_head()),
    "Qwen3.5, re:": qwen3_5(fp8_head("re:.*lm_head")),
    "Qwen3-Next": qwen3_next(fp8_head()),
    "Qwen3": qwen3(fp8_head()),
    "Qwen3.5, bf16 head": qwen3_5(BF16_HEAD),
    "Qwen3-Next, bf16 head": qwen3_next(BF16_HEAD),
    "Qwen3.5, tied": qwen3_5(fp8_head(), tie_word_embeddings=True),
    "Qwen3.5, tied, re:": qwen3_5(fp8_head("re:.*"), tie_word_embeddings=True),
    "Qwen3.5, tied, Linear": qwen3_5(
        config(group("Linear", BARE, kind="channel"), ignore=INSIDE), tie_word_embeddings=True
    ),
    "Qwen3.5, tied, bf16": qwen3_5(BF16_HEAD, tie_word_embeddings=True),
}
MTP = {
    **{f"{name}, MTP": (name, "Qwen3_5MTP") for name in MODELS if name.startswith("Qwen3.5")},
    **{f"{name}, MTP": (name, "Qwen3NextMTP") for name in MODELS if name.startswith("Qwen3-Next")},
}


def write(folder: Path, models: Mapping[str, dict[str, Any]] = MODELS) -> dict[str, Path]:
    """Write every model into a folder of its own; return the folders by the models' names."""
    folders = {name: folder / f"model-{index}" for index, name in enumerate(models)}
    for name, path in folders.items():
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(models[name]))
    return folders
