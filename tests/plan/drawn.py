"""Configs of models of each family, drawn at random. A maker is asked for one that so many GPUs can share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from vpatch.plan import FULL, LINEAR
from vpatch.plan.architectures import KNOWN

Config = dict[str, Any]
Maker = Callable[[Random, int], Config]

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
# What vLLM requires of a Ling's config, beside sizes.
BAILING: dict[str, Any] = {"use_bias": False, "use_qkv_bias": False, "norm_topk_prob": True, "embedding_dropout": 0.0}
BAILING |= {"rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 6e5, "tie_word_embeddings": False}


def hybrid(random: Random, ranks: int, kinds: Sequence[str] = ()) -> Config:
    """Draw a Qwen3-Next or a Qwen3.5, with Gated DeltaNet."""
    kind = random.choice(("qwen3_5", "qwen3_5_moe", "qwen3_next"))
    interval = random.choice((2, 3, 4, 4, 5))
    layers = random.choice((6, 8, 11, 13, 18, 24, 30))
    kinds = kinds or [FULL if (index + 1) % interval == 0 else LINEAR for index in range(layers)]
    key_heads = ranks * random.choice((1, 2, 4))
    text = SMALL | heads_of(random, ranks) | {"num_hidden_layers": len(kinds), "layer_types": list(kinds)}
    text |= {"model_type": kind if kind == "qwen3_next" else f"{kind}_text", "full_attention_interval": interval}
    text |= {"head_dim": random.choice((64, 128, 192, 256)), "dtype": "bfloat16"}
    text |= {"linear_num_key_heads": key_heads, "linear_num_value_heads": key_heads * random.choice((1, 2, 3))}
    text |= {f"linear_{side}_head_dim": random.choice((64, 128, 128)) for side in ("key", "value")}
    text |= {"linear_conv_kernel_dim": random.choice((2, 4, 4))}
    text |= {"mamba_ssm_dtype": random.choice(("float32", "float32", "bfloat16"))}
    if kind != "qwen3_5":
        text |= EXPERTS | {"shared_expert_intermediate_size": 64}
    if kind == "qwen3_next":
        return text | named(kind)
    text["mtp_num_hidden_layers"] = 1
    return named(kind) | {"text_config": text, "vision_config": {"model_type": kind}}


def dense(random: Random, ranks: int) -> Config:
    """Draw a model whose layers all have full attention."""
    kind = random.choice(("qwen3", "llama"))
    heads = heads_of(random, ranks)
    text = SMALL | heads | named(kind) | {"hidden_size": 8 * heads["num_attention_heads"]}
    text |= {"num_hidden_layers": random.choice((2, 3, 4, 5, 12, 17, 28))}
    text |= {"head_dim": random.choice((64, 72, 80, 96, 128, 256))}
    return text | {"dtype": random.choice(("bfloat16", "bfloat16", "float16"))}


def windowed(random: Random, ranks: int, pattern: int = 0) -> Config:
    """Draw a model of which each `pattern`-th layer has full attention; 1: none has it, as in old Mistrals."""
    kind = "mistral" if pattern == 1 else random.choice(("gemma2", "gemma3_text", "gpt_oss"))
    layers, pattern = random.choice((6, 8, 13, 24)), pattern or random.choice((2, 3, 6))
    if kind == "gpt_oss":  # vLLM does not read its `layer_types`
        pattern = 2
    kinds = ["sliding_attention" if (index + 1) % pattern else FULL for index in range(layers)]
    heads = heads_of(random, ranks)
    text = SMALL | heads | named(kind) | {"num_hidden_layers": layers, "dtype": "bfloat16"}
    text |= {"head_dim": random.choice((64, 128)), "sliding_window": random.choice((128, 512, 1024, 4096))}
    text |= {"hidden_size": 8 * heads["num_attention_heads"]}  # transformers wants a multiple
    if kind == "gpt_oss":
        text |= {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 64}
    return text if kind == "mistral" else text | {"layer_types": kinds}


def made(kind: str) -> Maker:
    """Return what draws a model with windows, chunks or experts of its own, or a vision tower, which is not loaded."""
    return partial(_made, kind=kind)


def _made(random: Random, ranks: int, kind: str) -> Config:
    heads = heads_of(random, ranks)
    text = SMALL | heads | {"dtype": "bfloat16", "hidden_size": 64 * heads["num_attention_heads"]}
    text |= _own(random, ranks, kind)
    if kind not in TOWERS:
        return text | named(kind)
    within = {"text_config": text | {"model_type": f"{kind}_text"}, "vision_config": {"model_type": TOWERS[kind]}}
    return named(kind) | {"tie_word_embeddings": False} | within


def _own(random: Random, ranks: int, kind: str) -> Config:
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


def _gemma4(random: Random, ranks: int) -> Config:
    """Draw a Gemma 4, whose layers with full attention have larger heads, and as many KV heads or fewer."""
    layers, pattern, equal = random.choice((8, 12, 15)), random.choice((3, 5, 6)), random.random() < 0.6
    kv_heads = max(ranks, random.choice((2, 4, 8)))
    kinds = ["sliding_attention" if (index + 1) % pattern else "full_attention" for index in range(layers - 1)]
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    text = {"num_hidden_layers": layers, "layer_types": [*kinds, "full_attention"], "attention_k_eq_v": equal}
    text |= {"num_attention_heads": 2 * kv_heads, "num_key_value_heads": kv_heads, "attention_bias": False}
    text |= {"num_global_key_value_heads": max(ranks, kv_heads // 4) if equal else None}
    text |= {"head_dim": random.choice((128, 256)), "global_head_dim": random.choice((256, 512))}
    text |= {"sliding_window": random.choice((512, 1024)), "num_kv_shared_layers": random.choice((0, 0, 2))}
    text |= {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 512, "rms_norm_eps": 1e-6}
    text |= {"rope_parameters": {"sliding_attention": rope, "full_attention": rope}, "tie_word_embeddings": True}
    return text | {"hidden_activation": "gelu_pytorch_tanh"}


def latent(kind: str = "", rank: int = 0) -> Maker:
    """Return what draws a model with latent attention."""
    return partial(_latent, given=kind, rank=rank)


def _latent(random: Random, _ranks: int, given: str, rank: int) -> Config:
    kind = given or random.choice(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"))
    glm, sparse = kind.startswith("glm"), kind == "deepseek_v32"
    text: Config = SMALL | EXPERTS | named(kind) | {"num_hidden_layers": random.choice((2, 3, 5, 12))}
    text |= {"dtype": "bfloat16"}
    text |= {"num_attention_heads": 8, "num_key_value_heads": 8, "q_lora_rank": random.choice((None, 64))}
    text |= {"kv_lora_rank": rank or random.choice((256, 512)), "qk_rope_head_dim": 64}
    text |= {"qk_nope_head_dim": 192 if glm else 128 if sparse else random.choice((64, 128))}
    text |= {"v_head_dim": 256 if glm else 128, "n_routed_experts": 8, "n_shared_experts": 1}
    text |= {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1}
    return {key: text[key] for key in text if key != "num_experts"}


def stateful(kind: str) -> Maker:
    """Return what draws a hybrid with Mamba or a short convolution."""
    return partial(_stateful, kind=kind)


def _stateful(random: Random, ranks: int, kind: str) -> Config:
    heads, layers = heads_of(random, ranks), random.choice((8, 11, 16, 24))
    size, each = random.choice((64, 128)), random.choice((3, 4, 6))
    text: dict[str, Any] = SMALL | heads | named(kind) | {"num_hidden_layers": layers, "dtype": "bfloat16"}
    text |= {"hidden_size": size * heads["num_attention_heads"]}
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


def kimi(random: Random, ranks: int) -> Config:
    """Draw a Kimi-Linear, with Kimi Delta Attention beside latent attention."""
    layers, each, heads = random.choice((4, 8, 11, 27)), random.choice((3, 4, 4)), 2 * ranks * random.choice((1, 2, 8))
    numbers, rank = range(1, layers + 1), random.choice((256, 512))
    full = [number for number in numbers if number % each == 0 or number == layers]
    linear: dict[str, Any] = {"full_attn_layers": full, "kda_layers": [at for at in numbers if at not in full]}
    linear |= {"num_heads": heads, "head_dim": random.choice((64, 128)), "short_conv_kernel_size": 4}
    text = SMALL | EXPERTS | {"num_attention_heads": heads, "num_hidden_layers": layers, "linear_attn_config": linear}
    text |= {"kv_lora_rank": rank, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
    text |= {"v_head_dim": 128, "mla_use_nope": True, "num_experts_per_token": 2, "num_shared_experts": 1}
    text |= {"first_k_dense_replace": 1, "hidden_size": 8 * heads, "dtype": "bfloat16"}
    return text | named("kimi_linear")


def zamba(random: Random, ranks: int) -> Config:
    """Draw a Zamba2, some layers of which have attention beside a state."""
    heads, layers, each = 2 * ranks * random.choice((1, 2)), random.choice((6, 11, 24)), random.choice((2, 3, 6))
    text = SMALL | {"num_attention_heads": heads, "num_hidden_layers": layers, "dtype": "bfloat16"}
    text |= {"hidden_size": heads * random.choice((32, 40, 64)), "chunk_size": random.choice((128, 256))}
    text |= {"n_mamba_heads": heads * random.choice((1, 2)), "mamba_ngroups": 1, "num_mem_blocks": 2}
    text |= {"mamba_d_state": random.choice((64, 128)), "adapter_rank": 8, "mamba_d_conv": 4}
    text |= {"layers_block_type": ["hybrid" if index % each == 1 else "mamba" for index in range(layers)]}
    return text | named("zamba2")


def bailing(random: Random, ranks: int) -> Config:
    """Draw a Ling: of the second kind, whose layers of multi-token prediction vLLM does not load, or of the first."""
    kind, heads = random.choice(("bailing_moe", "bailing_moe_v2")), heads_of(random, ranks)
    text = BAILING | SMALL | heads | EXPERTS | {"num_nextn_predict_layers": 1, "num_shared_experts": 1}
    text |= {"num_hidden_layers": random.choice((2, 3, 20)), "hidden_size": 64 * heads["num_attention_heads"]}
    text |= {"head_dim": random.choice((64, 128)), "first_k_dense_replace": random.choice((0, 1)), "dtype": "bfloat16"}
    return text | named(kind)


def nemotron(random: Random, ranks: int) -> Config:
    """Draw a Nemotron-H as transformers 5 writes it: with a list of layers in place of the pattern."""
    text = _stateful(random, ranks, "nemotron_h")
    names = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    kept = {key: text[key] for key in text if key != "hybrid_override_pattern"}
    return kept | {"layers_block_type": [names[letter] for letter in text["hybrid_override_pattern"]]}


def named(kind: str) -> Config:
    """Return what names an architecture in a config."""
    return {"architectures": [NAMES[kind]], "model_type": kind}


def heads_of(random: Random, ranks: int) -> dict[str, int]:
    """Draw KV heads that can be divided among `ranks` or copied to them, and heads that they divide."""
    kv_heads = random.choice([count for count in range(1, 9) if not count % ranks or not ranks % count])
    each = random.choice([count for count in (1, 2, 4, 6, 8) if not kv_heads * count % ranks])
    return {"num_key_value_heads": kv_heads, "num_attention_heads": kv_heads * each}
