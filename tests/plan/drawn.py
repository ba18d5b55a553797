"""Configs of models with vision towers, chunked attention, or two shapes of attention, drawn at random."""

from __future__ import annotations

from random import Random
from typing import Any

from vpatch.plan import KNOWN

TOWERS = {
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen3_vl": "qwen3_vl",
    "gemma3": "siglip_vision_model",
    "llama4": "llama4_vision_model",
}
"""The type of the vision tower, by the type of a multimodal model."""

NAMES = {known.model_type: name for name, known in KNOWN.items()}


def named(kind: str, text: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a model of this type; one with a vision tower has that of the language model within."""
    head = {"architectures": [NAMES[kind]], "model_type": kind}
    if kind not in TOWERS:
        return text | head
    within = {"text_config": text | {"model_type": f"{kind}_text"}, "vision_config": {"model_type": TOWERS[kind]}}
    return head | {"tie_word_embeddings": False} | within


def drawn(random: Random, ranks: int, kind: str) -> dict[str, Any]:
    """Draw what a model of this type has beside heads and usual sizes."""
    if kind == "gemma4_text":
        return _gemma4(random, ranks)
    layers = {"num_hidden_layers": random.choice((6, 8, 13))}
    if kind == "llama4":  # each fourth layer has full attention, or none has chunks
        chunk, step = random.choice((512, 2000, 8192, None)), random.choice((1, 2))
        experts = {"num_local_experts": 8, "intermediate_size_mlp": 64, "interleave_moe_layer_step": step}
        return layers | experts | {"head_dim": random.choice((64, 128)), "attention_chunk_size": chunk}
    if kind == "ernie4_5_moe":
        return layers | {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 64}
    if kind == "qwen2_5_vl":  # whose heads have no size of their own
        return layers | {"use_sliding_window": False}
    if kind == "qwen3_vl":
        return layers | {"head_dim": random.choice((64, 128))}
    return layers | {"sliding_window": random.choice((512, 513, 1024, 4096))}


def _gemma4(random: Random, ranks: int) -> dict[str, Any]:
    """Draw a Gemma 4, whose layers with full attention have larger heads, and as many KV heads or fewer."""
    layers, pattern, equal = random.choice((8, 12, 15)), random.choice((3, 5, 6)), random.random() < 0.6
    kv_heads = max(ranks, random.choice((2, 4, 8)))
    kinds = ["sliding_attention" if (index + 1) % pattern else "full_attention" for index in range(layers - 1)]
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    return {
        "num_hidden_layers": layers,
        "layer_types": [*kinds, "full_attention"],
        "num_attention_heads": 2 * kv_heads,
        "num_key_value_heads": kv_heads,
        "num_global_key_value_heads": max(ranks, kv_heads // 4) if equal else None,
        "attention_k_eq_v": equal,
        "head_dim": random.choice((128, 256)),
        "global_head_dim": random.choice((256, 512)),
        "sliding_window": random.choice((512, 1024)),
        "num_kv_shared_layers": random.choice((0, 0, 2)),
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 512,
        "rope_parameters": {"sliding_attention": rope, "full_attention": rope},
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "tie_word_embeddings": True,
    }
