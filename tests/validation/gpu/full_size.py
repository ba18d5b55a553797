"""Checkpoints of published shapes, without weights.

Those of full size are made of the configs that `vpatch plan` records. Each has the parts of a processor that vLLM needs
for its largest image: a tokenizer of bytes, and the sizes in the Qwen3.5 and Qwen3.6 checkpoints'
preprocessor_config.json and video_preprocessor_config.json.

Those of families, in `families.json`, have the published widths and few layers. They show what a batch takes in each
family, which does not depend on the number of layers. The first start of an engine compiles the model, and takes more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vpatch.plan.models import recorded_revisions

from tests.validation.gpu.models import hybrid, write_config

FULL_SIZE = {"qwen3.6-35b-a3b": "Qwen/Qwen3.6-35B-A3B", "qwen3.6-27b": "Qwen/Qwen3.6-27B"}
"""Names of the recorded checkpoints, by folder."""

MARKS = {
    "<|endoftext|>": 248044,
    "<|vision_start|>": 248053,
    "<|vision_end|>": 248054,
    "<|image_pad|>": 248056,
    "<|video_pad|>": 248057,
}
"""Special tokens and their ids, as in the defaults of transformers' Qwen3_5Config."""

END = "<|endoftext|>"
ALIKE = ("hidden_act", "rms_norm_eps", "attention_bias", "attn_output_gate", "rope_parameters", "eos_token_id")
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
"""Bytes that the byte-level alphabet represents by themselves."""


def config(name: str) -> dict[str, Any]:
    """Return the config.json of a recorded checkpoint, with the fields that an engine needs and a plan does not."""
    recorded, like = recorded_revisions(name)[0].config, hybrid(4)
    text = {key: like["text_config"][key] for key in ALIKE}
    vision = {"hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": [], "model_type": recorded["model_type"]}
    return {
        **recorded,
        "text_config": recorded["text_config"] | text,
        "vision_config": recorded["vision_config"] | vision,
        "tie_word_embeddings": recorded["text_config"]["tie_word_embeddings"],
        "torch_dtype": "bfloat16",
        "image_token_id": MARKS["<|image_pad|>"],
        "video_token_id": MARKS["<|video_pad|>"],
        "vision_start_token_id": MARKS["<|vision_start|>"],
        "vision_end_token_id": MARKS["<|vision_end|>"],
    }


def _families() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the configs by group and folder; one is of a checkpoint of full size, with its first layers."""
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(Path(__file__).with_name("families.json").read_text())
    whole = config(FULL_SIZE["qwen3.6-27b"])
    found["delta"]["qwen3.6-27b-text"] = whole | {"text_config": whole["text_config"] | {"num_hidden_layers": 4}}
    usual = {"torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
    return {group: {name: usual | one for name, one in models.items()} for group, models in found.items()}


GROUPS = _families()
"""Families by their states: Gated DeltaNet's, others, or none."""
FAMILIES = {name: one for models in GROUPS.values() for name, one in models.items()}
AGAIN = ("qwen3-next-80b-a3b", "qwen3.6-27b-text", "gemma-3-27b", "llama-4-scout")
"""Models that are started twice: the second time, the compiled code is in vLLM's cache."""


def write(root: Path) -> None:
    for folder, one in FAMILIES.items():
        write_config(root / folder, one)
    for folder, name in FULL_SIZE.items():
        made = config(name)
        write_config(root / folder, made)
        for file, content in {**_tokenizer(), **_processor(made["vision_config"])}.items():
            (root / folder / file).write_text(json.dumps(content, indent=1))


def _tokenizer() -> dict[str, Any]:
    others = iter(range(256, 512))
    letters = [chr(byte if byte in PRINTABLE else next(others)) for byte in range(256)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    marks = [
        {"id": index, "content": mark, "special": True, "normalized": False, "lstrip": False, "rstrip": False,
         "single_word": False} for mark, index in MARKS.items()
    ]  # fmt: skip
    # The marks are among its words, too: a tokenizer gives other tokens the next free ids.
    vocabulary = {letter: index for index, letter in enumerate(letters)} | MARKS
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    tokenizer = {"version": "1.0", "added_tokens": marks, "pre_tokenizer": level, "decoder": level, "model": model}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END}
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": settings}


def _processor(vision: Mapping[str, Any]) -> dict[str, Any]:
    common = {
        "patch_size": vision["patch_size"], "temporal_patch_size": vision["temporal_patch_size"],
        "merge_size": vision["spatial_merge_size"], "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        "processor_class": "Qwen3VLProcessor",
    }  # fmt: skip
    image = {"size": {"longest_edge": 16777216, "shortest_edge": 65536}}
    video = {"size": {"longest_edge": 25165824, "shortest_edge": 4096}}
    return {
        "preprocessor_config.json": common | image | {"image_processor_type": "Qwen2VLImageProcessorFast"},
        "video_preprocessor_config.json": common | video | {"video_processor_type": "Qwen3VLVideoProcessor"},
    }
