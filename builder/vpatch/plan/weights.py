"""The size of a model's weights: from the headers of its files, from their index, as given, or by their shapes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vpatch.errors import Failure, Problem, collecting, raise_all
from vpatch.plan import FULL, GIB, MOE, Model, Weights
from vpatch.plan.architectures import Architecture
from vpatch.plan.checkpoint_files import LARGEST, Fields, load_json, tensor_sizes_of
from vpatch.plan.matrices import Parameters, matrices
from vpatch.plan.quantization import BF16, Quantization, head_scheme

INDEX = "model.safetensors.index.json"
INDEX_BYTES = 256 << 20
MOST_GIB = 1 << 20

_INSIDE = r"(?:(?:model|language_model|transformer|decoder|backbone|gpt_neox)\.)*"
_LAYER = re.compile(_INSIDE + r"(?:layers|h|blocks)\.(\d+)\.")
_SHARD = re.compile(r"[^/\\\0]+\.safetensors")
_TABLES = "embeddings?|embed_tokens|embed_tokens_per_layer|wte|embed_in|tok_embeddings|word_embeddings"
_EMBEDDING = re.compile(rf"(?:^|\.)(?:{_TABLES})\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.")
_VISION = re.compile(
    r"(?:model\.|language_model\.)*(?:visual|vision_tower|vision_model|multi_modal_projector|embed_vision|audio_tower|embed_audio)\."
)
_MTP = re.compile(r"(?:model\.|language_model\.)*mtp\.")

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
        with collecting(problems):
            sizes |= read(name)
    raise_all(problems)
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
    if estimated and not any(_is_draft(model, name) for name in index.inside("weight_map").data):
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
        elif _is_draft(model, name):
            parts["draft"] += size
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


def _is_draft(model: Model, name: str) -> bool:
    """Whether a tensor is of multi-token prediction, which some checkpoints keep behind the decoder's layers."""
    found = _LAYER.match(name)
    return bool(_MTP.match(name) or (found and (len(found[1]) > 9 or int(found[1]) >= len(model.layers))))


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


def estimate(
    text: Fields, model: Model, known: Architecture | None, quantization: Quantization | None
) -> Weights | None:
    """Estimate the weights from the config, and note in `text` what is wrong; None if it does not have the shapes."""
    if known is None or not model.hidden_size or not (model.experts or model.intermediate_size):
        return None

    def stored(part: Parameters, names: Iterable[str]) -> int:
        names = (f"{name}.{part.name}" for name in names)
        found = quantization.scheme(names) if quantization and part.linear else None
        return round(part.parameters * (found or BF16).size)

    def layer(index: int, kind: str, names: Sequence[str]) -> tuple[int, int]:
        """Return a layer's bytes, and those of them that each GPU has."""
        found = [(stored(part, names), part.whole) for part in matrices(model, text, known, index, kind)]
        return sum(size for size, _ in found), sum(size for size, whole in found if whole)

    def draft_layer(index: int) -> int:
        names = [f"mtp.layers.{index}"]
        joining = Parameters("fc", 2 * model.hidden_size * model.hidden_size)
        kinds = (FULL, MOE) if known.single else (FULL,)
        return sum(layer(len(model.layers) + index, kind, names)[0] for kind in kinds) + stored(joining, names)

    kinds = enumerate(model.layers)
    each = (layer(index, kind, [f"{name}.{index}" for name in LAYER_NAMES]) for index, kind in kinds)
    layers, whole = zip(*each, strict=True)
    table = model.vocab_size * model.hidden_size
    own = model.own_width * len(model.layers)  # of all layers' own embeddings of a token
    tables = table + own * text.number("vocab_size_per_layer_input", default=model.vocab_size, most=1 << 28)
    head = head_scheme(quantization, multimodal=model.tower is not None)
    tower = model.tower.parameters if model.tower else 0
    guessed = quantization is not None and not quantization.certain
    beside = model.hidden_size * (1 + own)
    embedding, other, vision = (round(count * BF16.size) for count in (tables, beside, tower))
    output = 0 if model.tied else round(table * (head or BF16).size)
    draft = sum(map(draft_layer, range(model.draft_layers)))
    sizes = layers, embedding, output, other, vision, draft
    source = "estimated from the shapes in the config"
    more = {"whole": sum(whole), "added": _added(model, quantization)}
    return Weights(*sizes, source=source, exact=False, summed=False, guessed=guessed, **more)


def _added(model: Model, quantization: Quantization | None) -> int:
    """Bytes that `MLAAttention.process_weights_after_loading` makes of a layer's quantized `kv_b_proj`, in 16 bits."""
    latent, index = model.attention.latent, len(model.layers) - 1
    if latent is None or quantization is None:
        return 0
    names = [f"{name}.{index}.self_attn.kv_b_proj" for name in LAYER_NAMES]
    parameters = latent.rank * model.attention.heads * (latent.nope + latent.value)
    return round(parameters * BF16.size) if quantization.scheme(names) else 0
