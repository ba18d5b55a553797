"""The vision tower of a multimodal model: its parameters, and the largest picture or video that vLLM profiles it with.

Source: the towers' modules in vLLM, and `MultiModalBudget` with each model's `get_mm_max_tokens_per_item`. The largest
picture of a processor is the one of its default settings; a checkpoint may have others beside its config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vpatch.plan import TOWERS, Tower
from vpatch.plan.checkpoint_files import Fields
from vpatch.plan.deployment import Deployment


def tower_of(config: Fields, kind: str, width: int) -> Tower:
    """Read the tower of a model whose decoder has so wide hidden states; note in `config` what is wrong."""
    row, vision = TOWERS[kind], config.inside("vision_config")
    defaults = row["defaults"]

    def size(*keys: str) -> int:
        default = next((defaults[key] for key in keys if key in defaults), 0)
        return vision.number(*keys, default=default, least=0, most=1 << 16)

    depth, hidden, mlp = size("depth", "num_hidden_layers"), size("hidden_size"), size("intermediate_size")
    side, merge = size("image_size") // max(size("patch_size"), 1), _merge(config, vision, defaults)
    patch = size("in_channels", "num_channels") * size("patch_size") ** 2 * max(size("temporal_patch_size"), 1)
    patches = row.get("patches", side * side)
    tokens = row.get("tokens", patches // merge**2)
    matrices = 3 if row.get("gated") else 2
    positions = size("num_position_embeddings") or (side * side if row.get("positions") else 0)
    block = 4 * hidden * hidden + matrices * hidden * mlp + 9 * hidden + mlp
    out = size("out_hidden_size") or width
    projector = {
        "merger": _mergers(vision, row) * hidden * merge**2 * (hidden * merge**2 + out),
        "pixtral": hidden * hidden * merge**2 + hidden * width + width * width,
        "linear": hidden * width,
        "llama4": mlp * size("projector_input_dim")
        + size("projector_output_dim") ** 2
        + size("vision_output_dim") * width,
    }[row["projector"]]
    parameters = depth * block + hidden * (patch + positions) + projector + _audio(config, width)
    wide = 4 * hidden + (4 if row.get("gated") else 2) * mlp + patch  # as vLLM counted for Qwen2.5-VL and Qwen3.5
    return Tower(parameters, patches, tokens, wide, row.get("frames", 1), row.get("measured", False))


def _audio(config: Fields, width: int) -> int:
    """Count the parameters of the audio tower that small Gemma 4 have beside: a Conformer."""
    if not config.has("audio_config"):
        return 0
    audio = config.inside("audio_config")
    layers, hidden = audio.number("num_hidden_layers", default=12), audio.number("hidden_size", default=1024)
    out = audio.number("output_proj_dims", default=1536)
    return (24 * layers * hidden + hidden + out) * hidden + out * width


def _merge(config: Fields, vision: Fields, defaults: Mapping[str, int]) -> int:
    """Read how many patches become one on a side; Mistral has it outside of the tower's config."""
    default = defaults.get("spatial_merge_size", 1)
    outer = config.number("spatial_merge_size", default=default, most=64)
    return vision.number("spatial_merge_size", default=outer, most=64)


def _mergers(vision: Fields, row: Mapping[str, Any]) -> int:
    """Count the projectors: one at the end, and one for each layer of DeepStack, whose number `mergers` defaults to."""
    listed = vision.data.get("deepstack_visual_indexes")
    return 1 + (len(listed) if isinstance(listed, list) else row.get("mergers", 0))


def profiled(tower: Tower, deployment: Deployment) -> tuple[int, int]:
    """Return how many patches vLLM profiles the tower with, and the tokens that they become."""
    frames = max(1, min(tower.frames, deployment.max_model_len // tower.tokens))
    tokens = frames * tower.tokens
    items = max(1, deployment.max_num_batched_tokens // tokens)
    return items * frames * tower.patches, items * tokens
