"""The matrices of a model, from its config: what each is called and how many parameters it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vpatch.plan.architectures import Architecture
from vpatch.plan.jsonfile import Fields
from vpatch.plan.model import FULL, GatedDeltaNet, Model

VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "in_channels": 3,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 2304,
    "out_hidden_size": 3584,
}
"""What transformers takes for keys that the `vision_config` of a Qwen3.5 leaves out."""


@dataclass(frozen=True)
class Part:
    """Parameters under one name; those of a linear layer may be quantised."""

    name: str
    parameters: int
    linear: bool = True


def layer(model: Model, text: Fields, known: Architecture | None, index: int, kind: str) -> Iterator[Part]:
    """Give the parts of a decoder layer, `index` from 0, by names below it. What is wrong is noted in `text`."""
    hidden = model.hidden_size
    yield Part("norms", 2 * hidden, linear=False)
    if kind == FULL or model.linear is None:
        yield from _attention(model, gated=known is not None and known.gated)
    else:
        yield from _delta(model.linear, hidden)
    experts = model.experts
    if known is None or experts is None or _is_dense(text, known, index):
        yield from _mlp("mlp", hidden, model.intermediate_size)
        return
    yield Part("mlp.gate", hidden * experts.count, linear=False)
    for part in _mlp("mlp.experts.0", hidden, experts.intermediate_size):
        yield Part(part.name, part.parameters * experts.count)
    if known.shared:
        width = text.number(known.shared, default=known.defaults[known.shared], least=0)
        if known.shared == "n_shared_experts":
            width *= experts.intermediate_size
        else:
            yield Part("mlp.shared_expert_gate", hidden)
        yield from _mlp("mlp.shared_expert", hidden, width)


def draft(model: Model) -> Iterator[Part]:
    """Give what a layer of multi-token prediction has beside a decoder layer of full attention."""
    yield Part("fc", 2 * model.hidden_size * model.hidden_size)


def vision(text: Fields) -> int:
    """Give the parameters of the vision tower of a Qwen3.5, whose `vision_config` is `text`."""
    depth, hidden, mlp, channels, patch, frames, merge, positions, out = (
        text.number(key, default=default, most=1 << 16) for key, default in VISION.items()
    )
    block = 4 * hidden * hidden + 2 * hidden * mlp + 9 * hidden + mlp
    merged = hidden * merge * merge
    embeddings = hidden * (channels * frames * patch * patch + positions)
    return depth * block + embeddings + merged * (merged + out)


def _is_dense(text: Fields, known: Architecture, index: int) -> bool:
    """Tell whether a layer of a model with experts has none, as vLLM's Qwen and GLM models decide it."""
    listed = text.data.get("mlp_only_layers")
    step = text.number("decoder_sparse_step", default=1)
    first = text.number("first_k_dense_replace", default=known.defaults.get("first_k_dense_replace", 0), least=0)
    return index < first or (isinstance(listed, list) and index in listed) or (index + 1) % step != 0


def _attention(model: Model, *, gated: bool) -> Iterator[Part]:
    hidden, attention = model.hidden_size, model.attention
    queries, keys = attention.heads * attention.head_size, attention.kv_heads * attention.head_size
    yield Part("self_attn.q_proj", hidden * queries * (2 if gated else 1))
    yield Part("self_attn.k_proj", hidden * keys)
    yield Part("self_attn.v_proj", hidden * keys)
    yield Part("self_attn.o_proj", hidden * queries)


def _delta(linear: GatedDeltaNet, hidden: int) -> Iterator[Part]:
    keys, values = linear.key_heads * linear.key_head_size, linear.value_heads * linear.value_head_size
    yield Part("linear_attn.in_proj_qkv", hidden * (2 * keys + values))
    yield Part("linear_attn.in_proj_z", hidden * values)
    yield Part("linear_attn.in_proj_b", hidden * linear.value_heads)
    yield Part("linear_attn.in_proj_a", hidden * linear.value_heads)
    yield Part("linear_attn.out_proj", hidden * values)
    yield Part("linear_attn.conv1d", linear.conv_kernel * (2 * keys + values), linear=False)


def _mlp(name: str, hidden: int, width: int) -> Iterator[Part]:
    for one in ("gate_proj", "up_proj", "down_proj"):
        yield Part(f"{name}.{one}", hidden * width)
