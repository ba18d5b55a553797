"""What a model's weights take, where no file says it: from its shapes, and from how each matrix is stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vpatch.plan import shapes
from vpatch.plan.architectures import Architecture
from vpatch.plan.jsonfile import Fields
from vpatch.plan.model import FULL, Model, Weights
from vpatch.plan.quantization import BF16, Quantization, head_scheme

LAYERS = ("model.language_model.layers", "language_model.model.layers", "model.layers")
"""What a config may call the decoder layers: as multimodal checkpoints do, as vLLM does, and as language models do."""
ESTIMATED = "estimated from the shapes in the config"


def weights(
    fields: Fields, text: Fields, model: Model, known: Architecture | None, quantization: Quantization | None
) -> Weights | None:
    """Give an estimate, None where the config does not tell the shapes. What is wrong with it is noted in `text`."""
    if known is None or not model.hidden_size or not (model.experts or model.intermediate_size):
        return None

    def takes(parts: Iterable[shapes.Part], names: Iterable[str]) -> int:
        return sum(_bytes(part, tuple(names), quantization) for part in parts)

    layers = tuple(
        takes(shapes.layer(model, text, known, index, kind), [f"{name}.{index}" for name in LAYERS])
        for index, kind in enumerate(model.layers)
    )
    table = model.vocab_size * model.hidden_size
    head = head_scheme(quantization, multimodal=model.vision)
    tower = shapes.vision(fields.inside("vision_config")) if model.vision else 0
    count = len(model.layers)
    draft = sum(
        takes([*shapes.layer(model, text, known, count + one, FULL), *shapes.draft(model)], [f"mtp.layers.{one}"])
        for one in range(model.draft_layers)
    )
    note = "" if quantization is None or quantization.certain else f"; {quantization.method} taken for two bytes each"
    return Weights(
        layers,
        embedding=round(table * BF16.size),
        head=0 if model.tied else round(table * (head[1] if head else BF16).size),
        other=round(model.hidden_size * BF16.size),
        vision=round(tower * BF16.size),
        draft=draft,
        source=ESTIMATED + note,
        exact=False,
        summed=False,
    )


def scaled(estimated: Weights | None, model: Model, total: int, source: str, *, whole: bool = False) -> Weights:
    """Give weights that are `total` bytes when loaded, or `whole` with the draft layers, split as an estimate is.

    Without an estimate all is in the layers, evenly.
    """
    parts = estimated or Weights((1,) * len(model.layers))
    of = parts.loaded + (parts.draft if whole else 0)

    def share(part: int) -> int:
        return part * total // of

    found = replace(
        parts,
        layers=tuple(map(share, parts.layers)),
        embedding=share(parts.embedding),
        head=share(parts.head),
        other=share(parts.other),
        vision=share(parts.vision),
        draft=share(parts.draft) if whole else parts.draft,
        source=source,
        exact=False,
        summed=True,
    )
    left = total - found.loaded - (found.draft if whole else 0)
    return replace(found, other=found.other + left)


def _bytes(part: shapes.Part, names: tuple[str, ...], quantization: Quantization | None) -> int:
    found = quantization.scheme(f"{name}.{part.name}" for name in names) if quantization and part.linear else None
    return round(part.parameters * (found[1] if found else BF16).size)
