"""Configs of Kimi-Linear, Zamba2, Ling and newer Nemotron-H, drawn at random, and what to draw of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.plan.drawn import EXPERTS, NAMES, SMALL, heads_of, stateful

# What vLLM requires of a Ling's config, beside sizes.
BAILING: dict[str, Any] = {"use_bias": False, "use_qkv_bias": False, "norm_topk_prob": True, "embedding_dropout": 0.0}
BAILING |= {"rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 6e5, "tie_word_embeddings": False}


def kimi(random: Random, ranks: int) -> dict[str, Any]:
    """Draw a Kimi-Linear, with Kimi Delta Attention beside latent attention."""
    layers, each, heads = random.choice((4, 8, 11, 27)), random.choice((3, 4, 4)), 2 * ranks * random.choice((1, 2, 8))
    numbers, rank = range(1, layers + 1), random.choice((256, 512))
    full = [number for number in numbers if number % each == 0 or number == layers]
    linear: dict[str, Any] = {
        "full_attn_layers": full,
        "kda_layers": [number for number in numbers if number not in full],
    }
    linear |= {"num_heads": heads, "head_dim": random.choice((64, 128)), "short_conv_kernel_size": 4}
    text = SMALL | EXPERTS | {"num_attention_heads": heads, "num_hidden_layers": layers, "linear_attn_config": linear}
    text |= {"kv_lora_rank": rank, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
    text |= {"v_head_dim": 128, "mla_use_nope": True, "num_experts_per_token": 2, "num_shared_experts": 1}
    text |= {"first_k_dense_replace": 1, "hidden_size": 8 * heads, "dtype": "bfloat16"}
    return text | {"model_type": "kimi_linear", "architectures": [NAMES["kimi_linear"]]}


def zamba(random: Random, ranks: int) -> dict[str, Any]:
    """Draw a Zamba2, some layers of which have attention beside a state."""
    heads, layers, each = 2 * ranks * random.choice((1, 2)), random.choice((6, 11, 24)), random.choice((2, 3, 6))
    text = SMALL | {"num_attention_heads": heads, "num_hidden_layers": layers, "dtype": "bfloat16"}
    text |= {"hidden_size": heads * random.choice((32, 40, 64)), "chunk_size": random.choice((128, 256))}
    text |= {"n_mamba_heads": heads * random.choice((1, 2)), "mamba_ngroups": 1, "num_mem_blocks": 2}
    text |= {"mamba_d_state": random.choice((64, 128)), "adapter_rank": 8, "mamba_d_conv": 4}
    text |= {"layers_block_type": ["hybrid" if index % each == 1 else "mamba" for index in range(layers)]}
    return text | {"model_type": "zamba2", "architectures": [NAMES["zamba2"]]}


def bailing(random: Random, ranks: int) -> dict[str, Any]:
    """Draw a Ling: of the second kind, whose layers of multi-token prediction vLLM does not load, or of the first."""
    kind, heads = random.choice(("bailing_moe", "bailing_moe_v2")), heads_of(random, ranks)
    text = BAILING | SMALL | heads | EXPERTS | {"num_nextn_predict_layers": 1, "num_shared_experts": 1}
    text |= {"num_hidden_layers": random.choice((2, 3, 20)), "hidden_size": 64 * heads["num_attention_heads"]}
    text |= {"head_dim": random.choice((64, 128)), "first_k_dense_replace": random.choice((0, 1)), "dtype": "bfloat16"}
    return text | {"model_type": kind, "architectures": [NAMES[kind]]}


def nemotron(random: Random, ranks: int) -> dict[str, Any]:
    """Draw a Nemotron-H as transformers 5 writes it: with a list of layers in place of the pattern."""
    text = stateful(random, "nemotron_h", ranks)
    names = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    kept = {key: text[key] for key in text if key != "hybrid_override_pattern"}
    return kept | {"layers_block_type": [names[letter] for letter in text["hybrid_override_pattern"]]}


Case = tuple[Callable[[Random, int], dict[str, Any]], int, str, dict[str, Any]]


def cases() -> Iterator[Case]:
    """Yield what draws a model, the number of GPUs, the type of the KV cache, and options."""
    for ranks, dtype, tokens in ((1, "auto", 0), (2, "fp8", 0), (1, "auto", 1), (1, "turboquant_k8v4", 0)):
        yield nemotron, ranks, dtype, {"tokens": tokens}
    for ranks in (1, 2, 4):
        yield from ((bailing, ranks, dtype, {}) for dtype in ("auto", "fp8"))
        for kind in (kimi, zamba):
            yield kind, ranks, "auto", {"cached": True}
            yield kind, ranks, "auto", {"cached": False}
            yield kind, ranks, "fp8", {}
    for kind in (bailing, kimi, zamba):
        yield from ((kind, 1, dtype, {"stages": 2}) for dtype in ("auto", "fp8"))
        yield kind, 1, "turboquant_k8v4", {}
    for capability in ((8, 0), (8, 9), (10, 0), (12, 0)):
        yield from ((kimi, 1, dtype, {"capability": capability}) for dtype in ("auto", "fp8"))
    yield from ((kimi, 1, "auto", {"states": states}) for states in ("float32", "bfloat16", "float16"))
    yield zamba, 1, "auto", {"states": "float32"}
