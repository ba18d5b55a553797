"""The size of a model's weights: from the headers of its files, from their index, as given, or by their shapes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from vpatch.errors import Failure, Problem
from vpatch.plan import FULL, GIB, LINEAR, Architecture, Model, Weights
from vpatch.plan.checkpoint_files import LARGEST, Fields, load_json, tensor_sizes_of
from vpatch.plan.quantization import BF16, Quantization, head_scheme

INDEX = "model.safetensors.index.json"
INDEX_BYTES = 256 << 20
MOST_GIB = 1 << 20

_INSIDE = r"(?:(?:model|language_model|transformer|decoder|backbone|gpt_neox)\.)*"
_LAYER = re.compile(_INSIDE + r"(?:layers|h|blocks)\.(\d+)\.")
_SHARD = re.compile(r"[^/\\\0]+\.safetensors")
_TABLES = "embedding|embed_tokens|embed_tokens_per_layer|wte|embed_in|tok_embeddings|word_embeddings"
_EMBEDDING = re.compile(rf"(?:^|\.)(?:{_TABLES})\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.")
_VISION = re.compile(
    r"(?:model\.|language_model\.)*(?:visual|vision_tower|vision_model|multi_modal_projector|embed_vision|audio_tower|embed_audio)\."
)
_DRAFT = re.compile(r"(?:model\.|language_model\.)*mtp\.")

# In configs: as in multimodal checkpoints, in vLLM, and in language models.
LAYER_NAMES = ("model.language_model.layers", "language_model.model.layers", "model.layers")


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
    """Return the model with weights from the bytes of its tensors by name; without a tied head's copy, as in vLLM."""
    layers = [0] * len(model.layers)
    parts = Counter[str]()
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
    return replace(model, weights=summed)


def scaled(estimated: Weights | None, model: Model, total: int, source: str, *, whole: bool = False) -> Weights:
    """Split `total` bytes as an estimate is split, or evenly over the layers; `whole`: the draft layers are in it."""
    parts = estimated or Weights((1,) * len(model.layers))
    of = parts.loaded + (parts.draft if whole else 0)
    names = ("embedding", "head", "other", "vision", *(("draft",) if whole else ()))
    shares = {name: getattr(parts, name) * total // of for name in names}
    layers = tuple(size * total // of for size in parts.layers)
    split = replace(parts, layers=layers, **shares, source=source, exact=False, summed=True, guessed=False)
    left = total - split.loaded - (split.draft if whole else 0)
    return replace(split, other=split.other + left)


class _Part(NamedTuple):
    """Parameters under one name; those of a linear layer may be quantized."""

    name: str
    parameters: int
    linear: bool = True


def estimate(
    text: Fields, model: Model, known: Architecture | None, quantization: Quantization | None
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
        return layer(len(model.layers) + index, FULL, names) + stored(joining, names)

    kinds = enumerate(model.layers)
    layers = [layer(index, kind, [f"{name}.{index}" for name in LAYER_NAMES]) for index, kind in kinds]
    table = model.vocab_size * model.hidden_size
    own = model.own_width * len(model.layers)  # of all layers' own embeddings of a token
    tables = table + own * text.number("vocab_size_per_layer_input", default=model.vocab_size, most=1 << 28)
    head = head_scheme(quantization, multimodal=model.vision)
    tower = model.tower.parameters if model.tower else 0
    guessed = quantization is not None and not quantization.certain
    beside = model.hidden_size * (1 + own)
    embedding, other, vision = (round(count * BF16.size) for count in (tables, beside, tower))
    output = 0 if model.tied else round(table * (head or BF16).size)
    draft = sum(map(draft_layer, range(model.draft_layers)))
    sizes = tuple(layers), embedding, output, other, vision, draft
    source = "estimated from the shapes in the config"
    return Weights(*sizes, source=source, exact=False, summed=False, guessed=guessed)


def _layer(model: Model, text: Fields, known: Architecture, index: int, kind: str) -> Iterator[_Part]:
    """Yield the matrices of a decoder layer, `index` from 0, by their names in it."""
    hidden, experts = model.hidden_size, model.experts
    yield _Part("norms", 2 * hidden, linear=False)
    yield from _mixer(model, known, kind, borrows=index >= len(model.layers) - model.borrowing)
    yield from (_Part(name, hidden * model.own_width) for name in ("per_layer_input_gate", "per_layer_projection"))
    if experts is None or known.parallel or _is_dense(text, known, index):
        yield from islice(_mlp("mlp", hidden, model.intermediate_size), 3 - known.mlp, None)
    if experts is None or _is_dense(text, known, index):
        return
    yield _Part("mlp.gate", hidden * experts.count, linear=False)
    yield from _mlp("mlp.experts.0", hidden, experts.intermediate_size, experts.count)
    if known.shared:
        width = text.number(known.shared, default=known.defaults[known.shared], least=0)
        if known.shared.endswith("shared_experts"):
            width *= experts.intermediate_size
        else:
            yield _Part("mlp.shared_expert_gate", hidden)
        yield from _mlp("mlp.shared_expert", hidden, width)


def _is_dense(text: Fields, known: Architecture, index: int) -> bool:
    """Whether a layer of a model with experts has none, as in vLLM's Qwen and GLM models."""
    steps = "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"
    listed, step = text.data.get("mlp_only_layers"), text.number(*steps, default=1)
    firsts, default = ("first_k_dense_replace", "moe_layer_start_index"), known.defaults.get("first_k_dense_replace", 0)
    first, last = (
        text.number(*firsts, default=default, least=0),
        text.number("moe_layer_end_index", default=-1, least=-1),
    )
    outside = index < first or -1 < last < index
    return outside or (isinstance(listed, list) and index in listed) or (index + 1) % step != 0


def _mixer(model: Model, known: Architecture, kind: str, *, borrows: bool = False) -> Iterator[_Part]:
    if kind != LINEAR or model.linear is None:
        attention, name = (model.attention if kind == FULL else model.local or model.attention), "self_attn"
        queries, keys = attention.heads * attention.head_size, attention.kv_heads * attention.head_size
        widths = {"q_proj": queries * (2 if known.gated else 1), "o_proj": queries}
        widths |= {} if borrows else {"k_proj": keys, "v_proj": keys}
    else:
        linear, name = model.linear, "linear_attn"
        keys, values = linear.key_heads * linear.key_head_size, linear.value_heads * linear.value_head_size
        widths = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values, "out_proj": values}
        widths |= {"in_proj_b": linear.value_heads, "in_proj_a": linear.value_heads}
        yield _Part("linear_attn.conv1d", linear.conv_kernel * (2 * keys + values), linear=False)
    yield from (_Part(f"{name}.{one}", model.hidden_size * width) for one, width in widths.items())


def _mlp(name: str, hidden: int, width: int, count: int = 1) -> Iterator[_Part]:
    return (_Part(f"{name}.{one}", hidden * width * count) for one in ("gate_proj", "up_proj", "down_proj"))
