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
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
}
LINEAR = {
    "num_hidden_layers": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "mtp_num_hidden_layers": 1,
}
VISION = {"model_type": "qwen3_5", "depth": 1, "hidden_size": 64, "num_heads": 2, "out_hidden_size": HIDDEN}
DRAFT = {"num_hidden_layers": 1, "draft_vocab_size": VOCAB, "rms_norm_eps": 1e-6, "hidden_act": "silu"}

# Unlike in the big model, experts are not quantized: their kernels are not available here.
INSIDE = ("re:.*visual.*", "re:.*linear_attn.*", "re:.*mlp.gate$", "re:.*mlp.experts.*", "re:.*shared_expert_gate$")


def fp8_head(target: str = BARE) -> Any:
    """Return the quantization config of the `fp8-head` branch: NVFP4 inside, the head in FP8 blocks."""
    return config(nvfp4("Linear"), group(target), ignore=(*INSIDE, "re:^mtp.*"))


BF16_HEAD = config(nvfp4("Linear"), ignore=(*INSIDE, "re:^mtp.*", BARE))

EXPERTS, STATES = "re:.*(experts|router)", ("re:.*mixer.*", "re:.*mamba.*")
UNPASSED_FP8 = config(group("Linear", kind="channel"), group(BARE), ignore=(EXPERTS, *STATES))
UNPASSED_BF16 = config(group("Linear", kind="channel"), ignore=(EXPERTS, *STATES, BARE))
BY_EXPRESSION = config(group("Linear", kind="channel"), group("re:.*lm_head"), ignore=(EXPERTS,))


def made(kind: str, architecture: str, quantization: Any | None, **own: Any) -> dict[str, Any]:
    """Return a config; None for no quantization."""
    model = {"architectures": [architecture], "model_type": kind} | SHARED | own
    return model | ({"quantization_config": quantization} if quantization else {})


def qwen3_5(quantization: Any, **text: Any) -> dict[str, Any]:
    """Return the config of a multimodal Qwen3.5."""
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {"model_type": "qwen3_5_text"} | SHARED | LINEAR | text,
        "vision_config": VISION,
        "quantization_config": quantization,
        "tie_word_embeddings": text.get("tie_word_embeddings", False),
    }


def qwen3_next(quantization: Any) -> dict[str, Any]:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": []}
    sizes = {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 128}
    return made("qwen3_next", "Qwen3NextForCausalLM", quantization, **LINEAR, **experts, **sizes)


def qwen3(quantization: Any) -> dict[str, Any]:
    """Return the config of a dense Qwen3, one of the many models that pass their quantization config to the head."""
    return made("qwen3", "Qwen3ForCausalLM", quantization, num_hidden_layers=4, mtp_num_hidden_layers=1)


def gpt_oss(quantization: Any) -> dict[str, Any]:
    """Return the config of a GPT-OSS that quantizes only the head."""
    yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    rope = {
        "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        "rope_theta": 150000.0,
        "rope_scaling": yarn | {"original_max_position_embeddings": 4096},
    }
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return made("gpt_oss", "GptOssForCausalLM", quantization, **experts, **layers, **rope)


def falcon_h1(quantization: Any, **more: Any) -> dict[str, Any]:
    sizes = {"d_ssm": 256, "n_heads": 4, "d_head": 64, "n_groups": 1, "d_state": 16, "expand": 1}
    states = {f"mamba_{name}": size for name, size in sizes.items()}
    return made("falcon_h1", "FalconH1ForCausalLM", quantization, **states, **more)


def jamba(quantization: Any) -> dict[str, Any]:
    """Return the config of a Jamba without experts."""
    layers = {"num_experts": 1, "attn_layer_period": 2, "attn_layer_offset": 1}
    return made("jamba", "JambaForCausalLM", quantization, mamba_d_state=16, mamba_dt_rank=16, **layers)


def ernie(quantization: Any, **more: Any) -> dict[str, Any]:
    """Return the config of an Ernie 4.5 with an MTP module, whose class ties the head by hand."""
    mtp = {"num_nextn_predict_layers": 1, "use_bias": False}
    return made("ernie4_5", "Ernie4_5ForCausalLM", quantization, **mtp, **more)


def mamba2(quantization: Any) -> dict[str, Any]:
    states = {"num_heads": 8, "head_dim": 64, "n_groups": 1, "state_size": 16, "expand": 2}
    attention = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings")
    model = made("mamba2", "Mamba2ForCausalLM", quantization, **states)
    return {name: value for name, value in model.items() if name not in attention}


def step3(quantization: Any) -> dict[str, Any]:
    """Return the config of a Step3 without its vision tower."""
    sizes = {"num_attention_groups": 1, "share_q_dim": 64}
    return made("step3_text", "Step3TextForCausalLM", quantization, moe_layers_enum="99", **sizes)


def llama4_draft(quantization: Any | None = None) -> dict[str, Any]:
    """Return the config of an EAGLE draft with a head of its own."""
    layers = {"num_hidden_layers": 1, "no_rope_layers": [0], "moe_layers": [], "interleave_moe_layer_step": 0}
    sizes = {"draft_vocab_size": VOCAB, "intermediate_size_mlp": 256, "num_local_experts": 1}
    others = {"attn_temperature_tuning": False, "yoco_global_kv_layer": None, "yoco_local_kv_layer": None}
    return made("llama4_text", "Llama4ForCausalLM", quantization, **layers, **sizes, **others)


def minicpm(quantization: Any | None) -> dict[str, Any]:
    """Return that of a MiniCPM draft. The class of its config comes with the checkpoint, so a Llama's stands in."""
    scales = {"scale_emb": 12, "scale_depth": 1.4, "mup_denominator": 32, "dim_model_base": 256}
    return made("llama", "MiniCPMForCausalLM", quantization, **DRAFT, **scales)


def deepseek(quantization: Any | None) -> dict[str, Any]:
    ranks = {"kv_lora_rank": 64, "q_lora_rank": 64, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    others = {"num_key_value_heads": 4, "moe_intermediate_size": 128, "first_k_dense_replace": 99}
    return made("deepseek_v3", "DeepseekV3ForCausalLM", quantization, **DRAFT, **ranks, **experts, **others)


TIED_LINEAR = config(group("Linear", BARE, kind="channel"), ignore=INSIDE)
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3.5": qwen3_5(fp8_head()),
    "Qwen3.5, re:": qwen3_5(fp8_head("re:.*lm_head")),
    "Qwen3-Next": qwen3_next(fp8_head()),
    "Qwen3": qwen3(fp8_head()),
    "Qwen3.5, bf16 head": qwen3_5(BF16_HEAD),
    "Qwen3-Next, bf16 head": qwen3_next(BF16_HEAD),
    "Qwen3.5, tied": qwen3_5(fp8_head(), tie_word_embeddings=True),
    "Qwen3.5, tied, re:": qwen3_5(fp8_head("re:.*"), tie_word_embeddings=True),
    "Qwen3.5, tied, Linear": qwen3_5(TIED_LINEAR, tie_word_embeddings=True),
    "Qwen3.5, tied, bf16": qwen3_5(BF16_HEAD, tie_word_embeddings=True),
}
UNPASSED: dict[str, dict[str, Any]] = {
    "GPT-OSS": gpt_oss(UNPASSED_FP8),
    "GPT-OSS, re:": gpt_oss(BY_EXPRESSION),
    "GPT-OSS, bf16 head": gpt_oss(UNPASSED_BF16),
    "Falcon-H1": falcon_h1(UNPASSED_FP8),
    "Falcon-H1, tied": falcon_h1(UNPASSED_FP8, tie_word_embeddings=True),
    "Jamba": jamba(UNPASSED_FP8),
    "Mamba2": mamba2(UNPASSED_FP8),
    "Step3": step3(UNPASSED_FP8),
    "Ernie": ernie(UNPASSED_FP8),
    "Ernie, tied": ernie(UNPASSED_FP8, tie_word_embeddings=True),
}
"""Models that do not pass their quantization config to the head."""
MTP = {
    **{f"{name}, MTP": (name, "Qwen3_5MTP") for name in MODELS if name.startswith("Qwen3.5")},
    **{f"{name}, MTP": (name, "Qwen3NextMTP") for name in MODELS if name.startswith("Qwen3-Next")},
    **{f"{name}, MTP": (name, "ErnieMTPModel") for name in ("Ernie", "Ernie, tied")},
}


def write(folder: Path, models: Mapping[str, dict[str, Any]]) -> dict[str, Path]:
    """Write every model into a folder of its own; return the folders by the models' names."""
    folders = {name: folder / f"model-{index}" for index, name in enumerate(models)}
    for name, path in folders.items():
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(models[name]))
    return folders
