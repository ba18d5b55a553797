"""Small Qwen3 and Qwen3.5 checkpoints with the shapes that matter.

`python tests/validation/gpu/models.py DIR` writes them.

Those without weights are loaded with load_format=dummy: good for memory and speed, useless for answers. The others
get random weights, scaled so that attention is peaked and every layer moves the residual stream: an error in the KV
cache or in the head then shows in the log-probabilities.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

VOCABULARY, HIDDEN, BLOCK = 4096, 1024, 128
END, DIGITS = 2, frozenset(range(10, 20))
"""Ids of the token that ends an answer, and of the digits."""
Config = dict[str, Any]
Weights = dict[str, "Tensor"]


def dense(layers: int) -> Config:
    """Return the config of a Qwen3, head size 128. TurboQuant skips the first and the last two layers."""
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN, "num_hidden_layers": layers, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": VOCABULARY, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu", "attention_bias": False,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


def hybrid(layers: int, heads: int = 8, kv_heads: int = 2) -> Config:
    """Return the config of a Qwen3.5: three gated delta net layers, then one of full attention with head size 256."""
    kinds = ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(layers)]
    text = {
        "model_type": "qwen3_5_text", "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 256,
        "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        "attention_bias": False, "attn_output_gate": True, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 8,
        "linear_num_value_heads": 16, "layer_types": kinds, "torch_dtype": "bfloat16", "mamba_ssm_dtype": "float32",
        "eos_token_id": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                            "mrope_section": [11, 11, 10], "mrope_interleaved": True},
    }  # fmt: skip
    vision = {
        "model_type": "qwen3_5", "depth": 1, "hidden_size": 128, "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": 256, "num_heads": 2, "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2,
        "temporal_patch_size": 2, "out_hidden_size": HIDDEN, "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [],
    }  # fmt: skip
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": text,
        "vision_config": vision, "image_token_id": 4000, "video_token_id": 4001, "vision_start_token_id": 4002,
        "vision_end_token_id": 4003, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip


def fp8_head(strategy: str) -> Config:
    """Return a compressed-tensors config with only the head in FP8: block (128 x 128), channel or tensor."""
    weights: Config = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False}
    inputs: Config = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
    if strategy == "block":
        weights["block_structure"] = [BLOCK, BLOCK]
        inputs |= {"strategy": "group", "group_size": BLOCK}
    group = {"targets": ["re:.*lm_head"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
        "ignore": ["re:.*visual.*", "re:.*layers.*"], "config_groups": {"group_0": group},
    }  # fmt: skip


def with_mtp(config: Config) -> Config:
    """Return a hybrid's config with one layer that drafts tokens (multi-token prediction)."""
    text = {**config["text_config"], "mtp_num_hidden_layers": 1}
    return {**config, "text_config": text, "mtp_num_hidden_layers": 1}


DUMMY = {"dense24": dense(24), "hyb8": hybrid(8), "hyb16": hybrid(16, heads=16, kv_heads=4)}
REAL = {"dense": dense(8), "hyb": hybrid(8)}
DRAFTING = ("hyb_mtp", "induction")
"""Checkpoints for speculative decoding: "hyb" with a random MTP layer, and a model that continues a repeated text."""
STRATEGIES = ("block", "channel", "tensor")


def write_config(folder: Path, config: Config) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def body(config: Config, seed: int) -> Weights:
    """Return every weight but the head's. Matrices have unit gain; query norms make attention logits' deviation 2."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    text = config.get("text_config", config)
    is_hybrid = "text_config" in config
    prefix = "model.language_model." if is_hybrid else "model."
    heads, kv_heads, dim = (text[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))

    def matrix(rows: int, columns: int) -> Tensor:
        return (torch.randn(rows, columns, generator=generator) / columns**0.5).bfloat16()

    def norm(size: int, gain: float = 1.0) -> Tensor:  # Qwen3.5 stores gain - 1
        return torch.full((size,), gain - 1.0 if is_hybrid else gain).bfloat16()

    def attention() -> Weights:
        return {
            "self_attn.q_proj.weight": matrix(heads * dim * (2 if is_hybrid else 1), HIDDEN),
            "self_attn.k_proj.weight": matrix(kv_heads * dim, HIDDEN),
            "self_attn.v_proj.weight": matrix(kv_heads * dim, HIDDEN),
            "self_attn.o_proj.weight": 4 * matrix(HIDDEN, heads * dim),  # averaging made the values small
            "self_attn.q_norm.weight": norm(dim, 2.0),
            "self_attn.k_norm.weight": norm(dim),
        }

    def delta_net() -> Weights:
        keys, values, size = text["linear_num_key_heads"], text["linear_num_value_heads"], 128
        mixed = 2 * keys * size + values * size
        return {
            "linear_attn.in_proj_qkv.weight": matrix(mixed, HIDDEN),
            "linear_attn.in_proj_z.weight": matrix(values * size, HIDDEN),
            "linear_attn.in_proj_b.weight": matrix(values, HIDDEN),
            "linear_attn.in_proj_a.weight": matrix(values, HIDDEN),
            "linear_attn.conv1d.weight": matrix(mixed, 4).unsqueeze(1),
            "linear_attn.dt_bias": torch.ones(values).bfloat16(),
            "linear_attn.A_log": torch.zeros(values).bfloat16(),
            "linear_attn.norm.weight": torch.ones(size).bfloat16(),
            "linear_attn.out_proj.weight": matrix(HIDDEN, values * size),
        }

    weights = {
        f"{prefix}embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, generator=generator).bfloat16(),
        f"{prefix}norm.weight": norm(HIDDEN),
    }
    for i, kind in enumerate(text.get("layer_types", ["full_attention"] * text["num_hidden_layers"])):
        layer = {
            "input_layernorm.weight": norm(HIDDEN),
            "post_attention_layernorm.weight": norm(HIDDEN),
            "mlp.gate_proj.weight": matrix(2 * HIDDEN, HIDDEN),
            "mlp.up_proj.weight": matrix(2 * HIDDEN, HIDDEN),
            "mlp.down_proj.weight": matrix(HIDDEN, 2 * HIDDEN),
        } | (attention() if kind == "full_attention" else delta_net())
        weights |= {f"{prefix}layers.{i}.{name}": tensor for name, tensor in layer.items()}
    return weights


def drafter(config: Config, seed: int) -> Weights:
    """Return the weights of an MTP layer, which has the shapes of the last decoder layer."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    last = f"model.language_model.layers.{config['text_config']['num_hidden_layers'] - 1}."
    layer = {name.replace(last, "mtp.layers.0."): w for name, w in body(config, seed).items() if name.startswith(last)}
    norms = ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding")
    mixing = torch.randn(HIDDEN, 2 * HIDDEN, generator=generator) / (2 * HIDDEN) ** 0.5
    own = {f"mtp.{name}.weight": torch.zeros(HIDDEN).bfloat16() for name in norms}
    return layer | own | {"mtp.fc.weight": mixing.bfloat16()}


def head(strategy: str) -> dict[str, Weights]:
    """Return one head as "fp8" with its scales and dequantized as "bf16"; by block also "shifted" by one block.

    Its 128 x 128 blocks differ in size by up to seven times, so that a misplaced scale shows.
    """
    import torch

    generator = torch.Generator().manual_seed(7)
    shape = (VOCABULARY // BLOCK, BLOCK, HIDDEN // BLOCK, BLOCK)
    gain = torch.exp(2 * torch.rand(shape[0], 1, shape[2], 1, generator=generator) - 1)
    blocks = torch.randn(shape, generator=generator) * gain * 4 / HIDDEN**0.5
    over = {"block": (1, 3), "channel": (2, 3), "tensor": (0, 1, 2, 3)}[strategy]
    scale = (blocks.abs().amax(over, keepdim=True) / 448).bfloat16()
    quantized = (blocks / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    dequantized = (quantized.float() * scale.float()).reshape(VOCABULARY, HIDDEN).bfloat16()
    stored = scale.reshape({"block": (shape[0], shape[2]), "channel": (VOCABULARY, 1), "tensor": (1,)}[strategy])
    fp8 = {"lm_head.weight": quantized.reshape(VOCABULARY, HIDDEN), "lm_head.weight_scale": stored}
    made = {"fp8": fp8, "bf16": {"lm_head.weight": dequantized}}
    return made | ({"shifted": fp8 | {"lm_head.weight_scale": stored.roll(1, 0)}} if strategy == "block" else {})


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer in which each digit is a token, for structured output; all other tokens are mere names."""
    words = {f"<{i}>" if i not in DIGITS else str(i - min(DIGITS)): i for i in range(VOCABULARY)}
    end = f"<{END}>"
    mark = {"id": END, "content": end, "special": True, "normalized": False, "lstrip": False, "rstrip": False,
            "single_word": False}  # fmt: skip
    model = {"type": "WordLevel", "vocab": words, "unk_token": "<0>"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [mark], "model": model}))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_all(root: Path) -> None:
    """Write every checkpoint: "dense24" and others without weights; "hyb", "hyb_block_fp8" and others with them."""
    from safetensors.torch import save_file

    for name, config in (DUMMY | REAL).items():
        write_config(root / name, config)
    heads = {strategy: head(strategy) for strategy in STRATEGIES}
    for name, config in REAL.items():
        save_file(body(config, seed=1), root / name / "body.safetensors", metadata={"format": "pt"})
        save_file(heads["tensor"]["bf16"], root / name / "head.safetensors", metadata={"format": "pt"})
        for strategy, kinds in heads.items():
            for kind, weights in kinds.items():
                folder = root / f"{name}_{strategy}_{kind}"
                extra = {} if kind == "bf16" else {"quantization_config": fp8_head(strategy)}
                write_config(folder, config | extra)
                (folder / "body.safetensors").unlink(missing_ok=True)
                os.link(root / name / "body.safetensors", folder / "body.safetensors")
                contiguous = {key: tensor.contiguous() for key, tensor in weights.items()}
                save_file(contiguous, folder / "head.safetensors", metadata={"format": "pt"})
    write_drafting(root)


def write_drafting(root: Path) -> None:
    """Write the checkpoints of `DRAFTING`; "hyb" must be there."""
    from safetensors.torch import save_file

    from tests.validation.gpu.induction import config_and_weights

    config, weights = config_and_weights()
    for folder, text in ((root / "hyb_mtp", with_mtp(REAL["hyb"])), (root / "induction", config)):
        write_config(folder, text)
    save_file({name: w.contiguous() for name, w in weights.items()}, root / "induction/model.safetensors",
              metadata={"format": "pt"})  # fmt: skip
    save_file(drafter(REAL["hyb"], seed=5), root / "hyb_mtp/mtp.safetensors", metadata={"format": "pt"})
    write_tokenizer(root / "hyb_mtp")
    for part in ("body.safetensors", "head.safetensors"):
        (root / "hyb_mtp" / part).unlink(missing_ok=True)
        os.link(root / "hyb" / part, root / "hyb_mtp" / part)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
