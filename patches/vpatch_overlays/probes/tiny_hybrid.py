"""A Qwen3.5 with random weights, 40 MB: one of its four layers is attention, the others are gated delta nets."""

import json
from pathlib import Path
from typing import Any

VOCABULARY, HIDDEN, HEADS, KV_HEADS, HEAD_SIZE = 2048, 512, 4, 2, 256
KEY_HEADS, VALUE_HEADS, STATE, KERNEL = 4, 8, 128, 4
KINDS = ("linear_attention", "linear_attention", "linear_attention", "full_attention")

TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": len(KINDS),
    "layer_types": KINDS,
    "full_attention_interval": len(KINDS),
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_SIZE,
    "attention_bias": False,
    "attn_output_gate": True,
    "hidden_act": "silu",
    "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": VALUE_HEADS,
    "linear_key_head_dim": STATE,
    "linear_value_head_dim": STATE,
    "linear_conv_kernel_dim": KERNEL,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
VISION = {
    "model_type": "qwen3_5",
    "depth": 1,
    "hidden_size": 128,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 256,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": HIDDEN,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [],
}
HYBRID = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": TEXT,
    "vision_config": VISION,
    "image_token_id": VOCABULARY - 4,
    "video_token_id": VOCABULARY - 3,
    "vision_start_token_id": VOCABULARY - 2,
    "vision_end_token_id": VOCABULARY - 1,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of the language model."""
    keys, values = KEY_HEADS * STATE, VALUE_HEADS * STATE
    attention = {
        "self_attn.q_proj.weight": (2 * HEADS * HEAD_SIZE, HIDDEN),  # and its gate
        "self_attn.k_proj.weight": (KV_HEADS * HEAD_SIZE, HIDDEN),
        "self_attn.v_proj.weight": (KV_HEADS * HEAD_SIZE, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_SIZE),
        "self_attn.q_norm.weight": (HEAD_SIZE,),
        "self_attn.k_norm.weight": (HEAD_SIZE,),
    }
    delta_net = {
        "linear_attn.in_proj_qkv.weight": (2 * keys + values, HIDDEN),
        "linear_attn.in_proj_z.weight": (values, HIDDEN),
        "linear_attn.in_proj_b.weight": (VALUE_HEADS, HIDDEN),
        "linear_attn.in_proj_a.weight": (VALUE_HEADS, HIDDEN),
        "linear_attn.conv1d.weight": (2 * keys + values, 1, KERNEL),
        "linear_attn.dt_bias": (VALUE_HEADS,),
        "linear_attn.A_log": (VALUE_HEADS,),
        "linear_attn.norm.weight": (STATE,),
        "linear_attn.out_proj.weight": (HIDDEN, values),
    }
    both = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "mlp.gate_proj.weight": (2 * HIDDEN, HIDDEN),
        "mlp.up_proj.weight": (2 * HIDDEN, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, 2 * HIDDEN),
    }
    found: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (VOCABULARY, HIDDEN),
        "model.language_model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.language_model.norm.weight": (HIDDEN,),
    }
    for number, kind in enumerate(KINDS):
        layer = both | (attention if kind == "full_attention" else delta_net)
        found |= {f"model.language_model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return found


def write(folder: Path) -> None:
    """Write config.json and the weights: matrices of unit gain, all else zero, which means one for Qwen3.5's norms."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    weights = {
        name: (torch.randn(shape, generator=generator) / shape[-1] ** 0.5 if len(shape) > 1 else torch.zeros(shape))
        for name, shape in shapes().items()
    }
    for name in weights:
        if name.endswith("linear_attn.norm.weight"):
            weights[name] += 1  # stored without the offset of one
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(HYBRID, indent=1), "utf-8")
    save_file({name: w.bfloat16() for name, w in weights.items()}, folder / "model.safetensors", {"format": "pt"})
