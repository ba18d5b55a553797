"""The size of a model's weights: from the headers of its files, from their index, as given, or by their shapes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import NamedTuple

from vpatch.errors import Failure, Problem
from vpatch.plan import (
    CONVOLUTION,
    DELTA,
    FULL,
    GIB,
    LINEAR,
    MAMBA1,
    MAMBA2,
    MLP,
    MOE,
    STATEFUL,
    VISION_DEFAULTS,
    Architecture,
    Attention,
    Latent,
    Model,
    Weights,
)
from vpatch.plan.checkpoint_files import LARGEST, Fields, load_json, tensor_sizes_of
from vpatch.plan.quantization import BF16, Quantization, head_scheme

INDEX = "model.safetensors.index.json"
INDEX_BYTES = 256 << 20
MOST_GIB = 1 << 20

_INSIDE = r"(?:(?:model|language_model|transformer|decoder|backbone|gpt_neox)\.)*"
_LAYER = re.compile(_INSIDE + r"(?:layers|h|blocks)\.(\d+)\.")
_SHARD = re.compile(r"[^/\\\0]+\.safetensors")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embeddings?|embed_tokens|wte|embed_in|tok_embeddings|word_embeddings)\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.")
_VISION = re.compile(r"(?:model\.|language_model\.)*(?:visual|vision_tower|vision_model)\.")
_DRAFT = re.compile(r"(?:model\.|language_model\.)*mtp\.")

# In configs: as in multimodal checkpoints, in vLLM, in language models, and in Nemotron-H.
LAYER_NAMES = ("model.language_model.layers", "language_model.model.layers", "model.layers", "backbone.layers")


def with_total(model: Model, gib: float) -> Model:
    """Return the model with weights of so many GiB when loaded; raise `Failure` if no model is that large."""
    if not 0 < gib <= MOST_GIB:
        raise Failure(Problem("wrong value", "--weights-gib", f"{gib} is not above 0, and {MOST_GIB:,} at most"))
    source = f"{gib:g} GiB as given, split by the shapes in the config"
    return replace(model, weights=scaled(model.weights, model, round(gib * GIB), source))


def from_files(model: Model, folder: Path) -> Model:
    """Return the model with the weights of a folder: the files that its index names, else all of them, as in vLLM."""
    path = folder / INDEX
    index = Fields(load_json(path, INDEX_BYTES), str(path)) if path.exists() else None
    names = shards(index) if index else sorted(path.name for path in folder.glob("*.safetensors"))
    there = [name for name in names if (folder / name).exists()]
    if index and len(there) < len(names):
        return _from_index(model, index, f"{len(names) - len(there)} of {len(names)} files are not there")
    if not there:
        return model
    source = f"the headers of {len(there)} safetensors file{'s' if len(there) > 1 else ''}"
    return from_tensors(model, gathered(lambda name: tensor_sizes_of(folder / name), there), source)


def gathered(read: Callable[[str], Mapping[str, int]], names: Iterable[str]) -> dict[str, int]:
    """Read the tensors' sizes of several files; raise one `Failure` with the problems of all files."""
    sizes: dict[str, int] = {}
    problems: list[Problem] = []
    for name in names:
        try:
            sizes |= read(name)
        except Failure as failure:
            problems += failure.problems
    if problems:
        raise Failure(*problems)
    return sizes


def shards(index: Fields) -> list[str]:
    """Return the files that an index names, each once; raise `Failure` if it names none, or anything but files."""
    files = index.inside("weight_map").data.values()
    if not files or not all(isinstance(name, str) and _SHARD.fullmatch(name) for name in files):
        index.wrong("weight_map", "does not give a safetensors file for each tensor")
    index.raise_problems()
    return sorted(set(files))


def _from_index(model: Model, index: Fields, because: str) -> Model:
    """Split the total in the index by the shapes; `because` is why the sizes of the tensors are not known."""
    total, key = index.inside("metadata").data.get("total_size"), "metadata.total_size"
    if total is None:
        return model
    if isinstance(total, float) and total.is_integer():  # older writers
        total = int(total)
    size = Fields({key: total}, index.where, index.problems).number(key, most=LARGEST)
    index.raise_problems()
    estimated = model.weights
    if estimated and not any(map(_DRAFT.match, index.inside("weight_map").data)):
        estimated = replace(estimated, draft=0)
    source = f"the total in {INDEX}, split by the shapes in the config; {because}"
    return replace(model, weights=scaled(estimated, model, size, source, whole=True))


def from_tensors(model: Model, sizes: Mapping[str, int], source: str) -> Model:
    """Return the model with weights from the bytes of its tensors by name; without a tied head's copy, as in vLLM.

    Raises:
        Failure: they are not the tensors of this model.
    """
    layers = [0] * len(model.layers)
    parts = Counter[str]()
    _check_layers(model, sizes, source)
    for name, size in sizes.items():
        found = _LAYER.match(name)
        if _VISION.match(name):
            parts["vision"] += size
        elif _DRAFT.match(name) or (found and (len(found[1]) > 9 or int(found[1]) >= len(layers))):
            parts["draft"] += size  # some checkpoints keep layers of multi-token prediction behind the decoder's
        elif found:
            layers[int(found[1])] += size
        elif _HEAD.search(name):
            parts["head"] += 0 if model.tied else size
        else:
            parts["embedding" if _EMBEDDING.search(name) else "other"] += size
    embedding, head, other = parts["embedding"], parts["head"], parts["other"]
    summed = Weights(tuple(layers), embedding, head, other, parts["vision"], parts["draft"], source)
    if estimated := model.weights:
        summed = replace(summed, whole=estimated.whole, added=estimated.added)
    return replace(model, weights=summed)


def _check_layers(model: Model, names: Iterable[str], source: str) -> None:
    """Raise `Failure` if tensors of some layers are missing, or belong to layers that the config does not have."""
    there = {int(found[1]) for found in map(_LAYER.match, names) if found and len(found[1]) < 10}
    count = len(model.layers)
    missing, more = sorted({*range(count)} - there), sorted(one for one in there if one >= count)
    if there and missing:
        cause = f"no tensor of layer {missing[0]} in {source}, and num_hidden_layers is {count}"
    elif more and not model.draft_layers and not model.unknown:
        cause = f"tensors of layer {more[-1]} in {source}, and num_hidden_layers is {count}"
    else:
        return
    raise Failure(Problem("weights of another model", model.name, cause))


def scaled(estimated: Weights | None, model: Model, total: int, source: str, *, whole: bool = False) -> Weights:
    """Split `total` bytes as an estimate is split, or evenly over the layers; `whole`: of a checkpoint, with drafts."""
    parts = estimated or Weights((1,) * len(model.layers))
    of = parts.loaded + (parts.draft if whole else 0)
    names = ("embedding", "head", "other", "vision", *(("draft",) if whole else ()))
    shares = {name: getattr(parts, name) * total // of for name in names}
    layers = tuple(size * total // of for size in parts.layers)
    split = replace(parts, layers=layers, **shares, source=source, exact=False, summed=True, guessed=False)
    split = replace(split, whole=parts.whole * total // of, added=parts.added if whole else 0)
    left = total - split.loaded - (split.draft if whole else 0)
    return replace(split, other=split.other + left)


class _Part(NamedTuple):
    """Parameters under one name; those of a linear layer may be quantized. `whole`: ranks do not divide it."""

    name: str
    parameters: int
    linear: bool = True
    whole: bool = False


def estimate(
    fields: Fields, text: Fields, model: Model, known: Architecture | None, quantization: Quantization | None
) -> Weights | None:
    """Estimate the weights from the config, and note in `text` what is wrong; None if it does not have the shapes."""
    if known is None or not model.hidden_size or not (model.experts or model.intermediate_size):
        return None

    def stored(part: _Part, names: Iterable[str]) -> int:
        names = (f"{name}.{part.name}" for name in names)
        found = quantization.scheme(names) if quantization and part.linear else None
        return round(part.parameters * (found or BF16).size)

    def layer(index: int, kind: str, names: Iterable[str]) -> int:
        return sum(stored(part, names) for part in _layer(model, text, known, index, kind))

    def draft_layer(index: int) -> int:
        names = [f"mtp.layers.{index}"]
        joining = _Part("fc", 2 * model.hidden_size * model.hidden_size)
        kinds = (FULL, MOE) if known.single else (FULL,)
        return sum(layer(len(model.layers) + index, kind, names) for kind in kinds) + stored(joining, names)

    def whole(index: int) -> int:
        parts = _layer(model, text, known, index, model.layers[index])
        return sum(stored(part, [f"{name}.{index}" for name in LAYER_NAMES]) for part in parts if part.whole)

    kinds = enumerate(model.layers)
    layers = [layer(index, kind, [f"{name}.{index}" for name in LAYER_NAMES]) for index, kind in kinds]
    table = model.vocab_size * model.hidden_size
    head = head_scheme(quantization, multimodal=model.vision)
    tower = _vision(fields.inside("vision_config")) if model.vision else 0
    guessed = quantization is not None and not quantization.certain
    embedding, other, vision = (round(count * BF16.size) for count in (table, model.hidden_size, tower))
    output = 0 if model.tied else round(table * (head or BF16).size)
    draft = sum(map(draft_layer, range(model.draft_layers)))
    sizes = tuple(layers), embedding, output, other, vision, draft
    source = "estimated from the shapes in the config"
    replicated = sum(map(whole, range(len(model.layers))))
    added = _added(model, quantization)
    found = Weights(*sizes, source=source, exact=False, summed=False, guessed=guessed)
    return replace(found, whole=replicated, added=added)


def _added(model: Model, quantization: Quantization | None) -> int:
    """Bytes that `MLAAttention.process_weights_after_loading` makes of a layer's quantized `kv_b_proj`, in 16 bits."""
    latent, index = model.attention.latent, len(model.layers) - 1
    if latent is None or quantization is None:
        return 0
    names = [f"{name}.{index}.self_attn.kv_b_proj" for name in LAYER_NAMES]
    parameters = latent.rank * model.attention.heads * (latent.nope + latent.value)
    return round(parameters * BF16.size) if quantization.scheme(names) else 0


def _layer(model: Model, text: Fields, known: Architecture, index: int, kind: str) -> Iterator[_Part]:
    """Yield the matrices of a decoder layer, `index` from 0, by their names in it."""
    mixer = [] if kind in (MLP, MOE) else [*_mixer(model, text, known, kind, index)]
    network = [] if mixer and known.single else [*_network(model, text, known, index, kind)]
    yield _Part("norms", (1 if known.single else 2) * model.hidden_size, linear=False)
    for part in (*mixer, *network):
        yield part._replace(name=f"mixer.{part.name.partition('.')[2]}") if known.single else part


def _network(model: Model, text: Fields, known: Architecture, index: int, kind: str) -> Iterator[_Part]:
    hidden, experts = model.hidden_size, model.experts
    if experts is None or kind == MLP or _is_dense(text, known, index):
        yield from _mlp(known, "mlp", hidden, model.intermediate_size)
        return
    yield _Part("mlp.gate", hidden * experts.count, linear=False)
    inner = text.number("moe_latent_size", default=hidden)  # of a Nemotron-H, experts work in a smaller space
    if inner != hidden:
        yield _Part("mlp.fc1_latent_proj", 2 * hidden * inner)
    yield from _mlp(known, "mlp.experts.0", inner, experts.intermediate_size, experts.count)
    if known.shared:
        width = text.number(known.shared, default=known.defaults[known.shared], least=0)
        if known.shared == "n_shared_experts":
            name, width = "mlp.shared_experts", width * experts.intermediate_size
        elif known.shared == "shared_expert_intermediate_size":
            name = "mlp.shared_expert"
            yield _Part("mlp.shared_expert_gate", hidden)
        else:
            name = "mlp.shared_expert" + "s" * known.single
            width *= text.number("n_shared_experts", default=1, least=0)
        yield from _mlp(known, name, hidden, width)


def _is_dense(text: Fields, known: Architecture, index: int) -> bool:
    """Whether a layer of a model with experts has none, as in vLLM's Qwen, GLM and DeepSeek models."""
    listed, step = text.data.get("mlp_only_layers"), text.number("decoder_sparse_step", default=1)
    usual = known.defaults.get("first_k_dense_replace", 0)
    first = text.number("first_k_dense_replace", "num_dense_layers", default=usual, least=0)
    each = text.number("expert_layer_period", default=known.defaults.get("expert_layer_period", 1))
    offset = text.number("expert_layer_offset", default=known.defaults.get("expert_layer_offset", 0), least=0)
    if index % each != offset % each:  # as in Jamba
        return True
    if index < first or (isinstance(listed, list) and index in listed):
        return True
    return (index + 1) % step != 0 or index % text.number("moe_layer_freq", default=1) != 0


def _mixer(model: Model, text: Fields, known: Architecture, kind: str, index: int) -> Iterator[_Part]:
    hidden = model.hidden_size
    if kind != LINEAR:
        attention = model.attention
        if attention.latent:
            yield from _latent(attention, attention.latent, hidden, index)
            return
        queries, keys = attention.heads * attention.head_size, attention.kv_heads * attention.head_size
        widths = {"q_proj": queries * (2 if known.gated else 1), "k_proj": keys, "v_proj": keys, "o_proj": queries}
        yield from (_Part(f"self_attn.{one}", hidden * width) for one, width in widths.items())
    if kind not in STATEFUL or model.state is None:
        return
    state, channels = model.state, model.state.channels()
    name = {DELTA: "linear_attn", CONVOLUTION: "conv"}.get(state.kind, "mamba")
    yield _Part(f"{name}.conv1d", state.kernel * channels, linear=False)
    projections = {
        DELTA: {"in_proj_qkv": channels, "in_proj_z": state.width, "in_proj_b": state.heads, "in_proj_a": state.heads},
        MAMBA2: {"in_proj": state.width + channels + state.heads},
        MAMBA1: {"in_proj": 2 * state.width},
        CONVOLUTION: {"in_proj": 3 * state.width},
    }
    widths = {**projections[state.kind], "out_proj": state.width}
    yield from (_Part(f"{name}.{one}", hidden * width) for one, width in widths.items())
    if state.kind == MAMBA1:
        usual = ceil(hidden / 16)
        rank = usual if text.data.get("mamba_dt_rank") == "auto" else text.number("mamba_dt_rank", default=usual)
        # Projections of the time step, and others; its matrix A is in float32.
        yield _Part(f"{name}.x_proj", state.width * (2 * rank + 4 * state.state_size))


def _latent(attention: Attention, latent: Latent, hidden: int, index: int) -> Iterator[_Part]:
    heads, queries = attention.heads, latent.queries
    query = heads * (latent.nope + latent.rope)
    if queries:
        yield _Part("self_attn.q_a_proj", hidden * queries, whole=True)
        yield _Part("self_attn.q_b_proj", queries * query)
    else:
        yield _Part("self_attn.q_proj", hidden * query)
    yield _Part("self_attn.kv_a_proj_with_mqa", hidden * attention.head_size, whole=True)
    yield _Part("self_attn.kv_b_proj", latent.rank * heads * (latent.nope + latent.value))
    yield _Part("self_attn.o_proj", heads * latent.value * hidden)
    if latent.index and index not in latent.shares:
        yield _Part("self_attn.indexer.wq_b", queries * latent.index_heads * latent.index, whole=True)
        yield _Part("self_attn.indexer.wk", hidden * latent.index, whole=True)
        yield _Part("self_attn.indexer.weights_proj", hidden * latent.index_heads, linear=False, whole=True)


def _mlp(known: Architecture, name: str, hidden: int, width: int, count: int = 1) -> Iterator[_Part]:
    names = ("gate_proj", "up_proj", "down_proj")[3 - known.mlp :]
    return (_Part(f"{name}.{one}", hidden * width * count) for one in names)


def _vision(text: Fields) -> int:
    depth, hidden, mlp, channels, patch, frames, merge, positions, out = (
        text.number(key, default=default, most=1 << 16) for key, default in VISION_DEFAULTS.items()
    )
    block = 4 * hidden * hidden + 2 * hidden * mlp + 9 * hidden + mlp
    merged = hidden * merge * merge
    embeddings = hidden * (channels * frames * patch * patch + positions)
    return depth * block + embeddings + merged * (merged + out)
