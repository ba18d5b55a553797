"""Where a GPU's memory goes: what can be computed is, the rest is estimated, with its bounds.

vLLM takes `gpu_memory_utilization` of the whole card, runs the model once at its largest batch, and gives the KV cache
what that run left. Weights and the KV cache are arithmetic; `vpatch.plan.estimates` has what is known of the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from vpatch.plan.estimates import Estimate, Item, exactly, runtime_items
from vpatch.plan.kv_cache import skipped_layers, stages_of
from vpatch.plan.model import MIB, Deployment, Model, Weights
from vpatch.plan.turboquant import turboquant_items


@dataclass(frozen=True)
class Memory:
    """The memory of a GPU, in bytes. `total` is the card's, `requested` vLLM's share of it.

    `items` are what takes some besides the KV cache; those not `counted` come on top of the share. `kv_cache` is what
    is left of the share for it, and may be negative.
    """

    total: int
    requested: int
    items: tuple[Item, ...]
    kv_cache: Estimate

    @property
    def left(self) -> Estimate:
        """What stays free of the whole card when everything is in use; negative: it does not fit."""
        if self.kv_cache.exact:
            return exactly(self.total) - self.kv_cache - added(self.items)
        # What is not known of what is counted goes to the KV cache, and leaves the sum as it is.
        return exactly(self.total - self.requested) - added(item for item in self.items if not item.counted)


def added(items: Iterable[Item]) -> Estimate:
    """Give what items take together."""
    return sum((item.size for item in items), exactly(0))


def account(model: Model, weights: Weights, deployment: Deployment) -> tuple[Memory, ...]:
    """Account for the memory of a GPU of each pipeline stage."""
    total = deployment.gpu.memory
    requested = ceil(total * deployment.gpu_memory_utilization)
    found = []
    for stage in stages_of(len(model.layers), deployment.pipeline_parallel_size):
        quantised = len([index for index in stage if index not in skipped_layers(model, deployment)])
        items = (
            _weights(model, weights, deployment, stage),
            *runtime_items(model, deployment),
            *turboquant_items(model, deployment, quantised),
        )
        rest = exactly(requested) - added(item for item in items if item.counted)
        given = deployment.kv_cache_memory_bytes
        found.append(Memory(total, requested, items, rest if given is None else exactly(given)))
    return tuple(found)


def _weights(model: Model, weights: Weights, deployment: Deployment, stage: range) -> Item:
    """Give what a GPU of a stage holds of the checkpoint: its layers, embeddings on the first, the head on the last."""
    size = weights.other + sum(weights.layers[stage.start : stage.stop])
    size += 0 if deployment.language_model_only else weights.vision
    if stage.start == 0:
        size += weights.embedding
    if stage.stop == len(weights.layers):
        size += weights.head + (weights.draft if deployment.speculative_tokens else 0)
    size = ceil(size / deployment.tensor_parallel_size)
    known = weights.exact or (weights.summed and deployment.pipeline_parallel_size == 1)
    off = 0.1 if model.quantization else 0.02  # what a checkpoint leaves unquantised is only guessed at
    known = known and deployment.tensor_parallel_size == 1  # what is small is copied, not divided
    bounds = exactly(size) if known else Estimate(size, int(size * (1 - off)), int(size * (1 + off)) + TABLES)
    return Item("weights", bounds, weights.source)


TABLES = 160 * MIB
"""What vLLM adds to what is stored, most of it tables of rotary positions: 0.14 GiB for Qwen3.6, where it was seen."""
