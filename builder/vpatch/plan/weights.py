"""What a checkpoint's tensors take: from the headers of its files, or from its index, or as somebody says."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from vpatch.errors import Failure, Problem
from vpatch.plan import tensors
from vpatch.plan.estimate import scaled
from vpatch.plan.jsonfile import Fields, load
from vpatch.plan.model import GIB, Model, Weights

INDEX = "model.safetensors.index.json"
INDEX_BYTES = 256 << 20
MOST_GIB = 1 << 20

_LAYER = re.compile(
    r"(?:(?:model|language_model|transformer|decoder|backbone|gpt_neox)\.)*(?:layers|h|blocks)\.(\d+)\."
)
_SHARD = re.compile(r"[^/\\\0]+\.safetensors")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|embed_in|tok_embeddings|word_embeddings)\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.")
_VISION = re.compile(r"(?:model\.|language_model\.)*(?:visual|vision_tower|vision_model)\.")
_DRAFT = re.compile(r"(?:model\.|language_model\.)*mtp\.")


def given(model: Model, gib: float) -> Model:
    """Give a model whose weights are so many GiB once loaded, because somebody says so.

    Raises:
        Failure: no model is that large.
    """
    if not math.isfinite(gib) or not 0 < gib <= MOST_GIB:
        raise Failure(Problem("wrong value", "--weights-gib", f"{gib} is not above 0, and {MOST_GIB:,} at most"))
    source = f"{gib:g} GiB as given, split by the shapes in the config"
    return replace(model, weights=scaled(model.weights, model, round(gib * GIB), source))


def beside(model: Model, folder: Path) -> Model:
    """Give a model with what the safetensors files in its folder say of its weights; as it is, where there are none.

    As vLLM does, those that the index names are taken, without an index all.

    Raises:
        Failure: a file's header, or the index, is not true; every file's problem at once.
    """
    index = Fields(load(folder / INDEX, INDEX_BYTES), str(folder / INDEX)) if (folder / INDEX).exists() else None
    names = shards(index) if index else sorted(path.name for path in folder.glob("*.safetensors"))
    there = [name for name in names if (folder / name).exists()]
    if index and len(there) < len(names):
        return indexed(model, index, f"{len(names) - len(there)} of {len(names)} files are not there")
    if not there:
        return model
    sizes: dict[str, int] = {}
    problems: list[Problem] = []
    for name in there:
        try:
            sizes |= tensors.of_file(folder / name)
        except Failure as failure:
            problems += failure.problems
    if problems:
        raise Failure(*problems)
    return measured(model, sizes, f"the headers of {len(there)} safetensors file{'s' if len(there) > 1 else ''}")


def shards(index: Fields) -> list[str]:
    """Give the files that an index names, each once.

    Raises:
        Failure: it names none, or what is no file beside it.
    """
    files = index.inside("weight_map").data.values()
    if not files or not all(isinstance(name, str) and _SHARD.fullmatch(name) for name in files):
        index.wrong("weight_map", "does not give a safetensors file for each tensor")
    index.raise_problems()
    return sorted(set(files))


def indexed(model: Model, index: Fields, because: str) -> Model:
    """Give a model with the total that its index says, split by shape; `because` is why not by tensor."""
    total = index.inside("metadata").data.get("total_size")
    if isinstance(total, float) and total.is_integer():  # older writers
        total = int(total)
    if total is None:
        return model
    size = Fields({"metadata.total_size": total}, index.where, index.problems).number(
        "metadata.total_size", most=tensors.LARGEST
    )
    index.raise_problems()
    estimated = model.weights
    if estimated and not any(map(_DRAFT.match, index.inside("weight_map").data)):
        estimated = replace(estimated, draft=0)
    source = f"the total in {INDEX}, split by the shapes in the config; {because}"
    return replace(model, weights=scaled(estimated, model, size, source, whole=True))


def measured(model: Model, sizes: Mapping[str, int], source: str) -> Model:
    """Give a model with the sizes of its tensors, in bytes by name. A tied head's copy is left out, as vLLM does."""
    layers, embedding, head, other, vision, draft = [0] * len(model.layers), 0, 0, 0, 0, 0
    for name, size in sizes.items():
        found = _LAYER.match(name)
        if _VISION.match(name):
            vision += size
        elif _DRAFT.match(name) or (found and not _within(found[1], len(layers))):
            draft += size
        elif found:
            layers[int(found[1])] += size
        elif _HEAD.search(name):
            head += 0 if model.tied else size
        elif _EMBEDDING.search(name):
            embedding += size
        else:
            other += size
    return replace(model, weights=Weights(tuple(layers), embedding, head, other, vision, draft, source))


def _within(index: str, count: int) -> bool:
    """Tell whether a layer is one of the decoder's; beyond them, some checkpoints keep those of prediction."""
    return len(index) < 10 and int(index) < count
