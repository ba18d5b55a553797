"""Configs of models of some families, drawn at random: towers, chunks, two shapes of attention, latents, states."""

from __future__ import annotations

from random import Random
from typing import Any

from vpatch.plan import FULL, LINEAR
from vpatch.plan.architectures import KNOWN

TOWERS = {
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen3_vl": "qwen3_vl",
    "gemma3": "siglip_vision_model",
    "llama4": "llama4_vision_model",
}
"""The type of the vision tower, by the type of a multimodal model."""

NAMES = {known.model_type: known.names[0] for known in KNOWN.values()}

STATEFUL = ("nemotron_h", "granitemoehybrid", "falcon_h1", "jamba", "lfm2", "lfm2_moe")

POSITIONS = 262_144
# As small as possible, since no size depends on it.
SMALL = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 512, "max_position_embeddings": POSITIONS}
# An indexer in the first two layers, and in each second one of the others.
SPARSE = {"index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128, "q_lora_rank": 64, "num_hidden_layers": 9}
SPARSE |= {"index_topk_freq": 2, "index_skip_topk_offset": 2}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


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


def latent(random: Random, rank: int = 0, kind: str = "") -> dict[str, Any]:
    """Draw a model with latent attention."""
    kind = kind or random.choice(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"))
    return SMALL | {
        "model_type": kind,
        "architectures": [NAMES[kind]],
        "num_hidden_layers": random.choice((2, 3, 5, 12)),
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "q_lora_rank": random.choice((None, 64)),
        "kv_lora_rank": rank or random.choice((256, 512)),
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 192
        if kind.startswith("glm")
        else 128
        if kind == "deepseek_v32"
        else random.choice((64, 128)),
        "v_head_dim": 256 if kind.startswith("glm") else 128,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
        "dtype": "bfloat16",
    }


def stateful(random: Random, kind: str, ranks: int) -> dict[str, Any]:
    """Draw a hybrid with Mamba or a short convolution."""
    heads, layers = heads_of(random, ranks), random.choice((8, 11, 16, 24))
    size, each = random.choice((64, 128)), random.choice((3, 4, 6))
    text: dict[str, Any] = (
        SMALL
        | heads
        | {"model_type": kind, "architectures": [NAMES[kind]], "num_hidden_layers": layers, "dtype": "bfloat16"}
        | {"hidden_size": size * heads["num_attention_heads"]}
    )
    mamba_heads = ranks * random.choice((2, 4, 8))
    groups = random.choice([1, *(count for count in (2, 4) if not mamba_heads % count and not count % ranks)])
    kinds = [FULL if index % each == 2 else LINEAR for index in range(layers)]
    if kind == "nemotron_h":
        letters = "".join(random.choice("ME-M") if kind == LINEAR else "*" for kind in kinds[2:])
        text |= {"hybrid_override_pattern": f"M-{letters}"[:layers], "head_dim": 128, "mamba_num_heads": mamba_heads}
        text |= {"n_groups": groups, "mamba_head_dim": random.choice((64, 80)), "ssm_state_size": 128}
        text |= {"chunk_size": random.choice((128, 256)), "conv_kernel": 4, "use_conv_bias": True, "use_bias": False}
        text |= {"n_routed_experts": 8, "num_nextn_predict_layers": 1, "moe_shared_expert_intermediate_size": 64}
        text |= {"moe_intermediate_size": 64, "use_mamba_kernels": True, "mamba_proj_bias": False}
        return text | random.choice(({}, {"mamba_ssm_cache_dtype": "float32"}))
    if kind in ("granitemoehybrid", "falcon_h1"):
        text |= {"mamba_n_groups": groups, "mamba_d_state": random.choice((128, 256)), "mamba_chunk_size": 256}
        inner = {"mamba_expand": 2} if kind == "granitemoehybrid" else {"mamba_d_ssm": 64 * mamba_heads}
        text |= inner | {"mamba_n_heads": mamba_heads}
    if kind == "granitemoehybrid":
        names = {FULL: "attention", LINEAR: "mamba"}
        text |= {"layer_types": [names[kind] for kind in kinds], "mamba_d_head": "auto"}
        text |= {"num_local_experts": random.choice((0, 8)), "shared_intermediate_size": 64}
    if kind == "falcon_h1":
        text |= {"head_dim": size, "key_multiplier": 1.0, "rope_theta": 10_000.0}
    if kind == "jamba":
        text |= {"attn_layer_period": each, "attn_layer_offset": each - 1, "num_experts": random.choice((1, 8))}
    if "lfm2" in kind:
        text |= {"layer_types": [FULL if kind == FULL else "conv" for kind in kinds], "conv_L_cache": 3}
        text |= dict.fromkeys(("conv_dim", "block_dim"), text["hidden_size"]) | {"block_ff_dim": 64, "rope_theta": 1e6}
    return text | (EXPERTS if kind == "lfm2_moe" else {})


def heads_of(random: Random, ranks: int) -> dict[str, int]:
    """Draw KV heads that can be divided among `ranks` or copied to them, and heads that they divide."""
    kv_heads = random.choice([count for count in range(1, 9) if not count % ranks or not ranks % count])
    each = random.choice([count for count in (1, 2, 4, 6, 8) if not kv_heads * count % ranks])
    return {"num_key_value_heads": kv_heads, "num_attention_heads": kv_heads * each}
