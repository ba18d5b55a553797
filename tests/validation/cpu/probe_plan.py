"""The KV cache sizes that vLLM computes for each case of a file.

Everything between a config.json and the printed number of tokens is the release's own code: the engine's config, the
layers (on the meta device), the block size, the specs, and `EngineCore._initialize_kv_caches`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.validation.cpu.engine import Workers, initialized, ranks, specs_of
from tests.validation.cpu.platform import (
    import_kimi,
    import_latent_attention,
    name_activations,
    pretend_capability,
    register_bailing,
    register_nemotron_h,
    stand_in_for_diskcache,
    stand_in_for_flashinfer,
    stand_in_for_gemma4,
    stand_in_for_vision,
    without_cuda_memory,
)
from tests.validation.cpu.probing import attempt, engine_config, logged, modules_of, one_rank

PRINTED = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
MOST = 1 << 60  # bytes; more than the square of any block, so that the number of blocks shows their size


def planned(found: dict[str, Any], path: str, arguments: dict[str, Any], budget: int) -> None:
    """Take a model through every step that affects the size of its KV cache.

    If vLLM raises, `stage` shows which step failed.
    """
    found["stage"] = "config"
    config = engine_config(path, enforce_eager=True, distributed_executor_backend="mp", **arguments)
    found["stage"] = "layers"
    with ranks(config.parallel_config.tensor_parallel_size):
        with without_cuda_memory():
            layers = modules_of(config)
        found["stage"] = "block size"
        specs = specs_of(config)
    found["backends"] = sorted({layer.get_attn_backend().get_name() for layer in layers.values()})
    found["layers"] = counted(spec for stage in specs for spec in stage.values())
    found["stage"] = "kv cache"
    workers = Workers(config, specs)
    with quiet():
        sizes = found["bytes_per_block"] = [block_of(workers, stage) for stage in range(len(specs))]
        found["needed"] = needed(workers, max(sizes))
        made = initialized(workers, found["needed"])
        found["longest"] = longest(workers, budget)
    found["groups"] = [
        described(group.kv_cache_spec)
        | {"layers": sum(len(worker.kv_cache_groups[index].layer_names) for worker in workers.made)}
        for index, group in enumerate(made.kv_cache_groups)
    ]
    found["stage"] = "admission"
    found |= started_with(workers, budget)
    del found["stage"]


def block_of(workers: Workers, stage: int) -> int:
    """Return the bytes of a block on a stage's workers, by giving them the least memory."""
    huge = [MOST << 20] * len(workers.specs)
    return int(MOST // initialized(workers, *huge[:stage], MOST, *huge[stage + 1 :]).num_blocks)


def needed(workers: Workers, block: int) -> int:
    """Return the smallest budget with which the engine starts; tries whole blocks of this size first."""
    enough = block * smallest(lambda count: admits(workers, count * block))
    return smallest(lambda budget: admits(workers, budget)) if admits(workers, enough - 1) else enough


def admits(workers: Workers, budget: int) -> bool:
    """Whether the engine starts with this budget."""
    try:
        initialized(workers, budget)
    except ValueError:
        return False
    return True


def smallest(holds: Callable[[int], bool]) -> int:
    """Return the smallest number for which `holds` is true; it must be true for all greater numbers."""
    high = 1
    while not holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def longest(workers: Workers, budget: int) -> int:
    """Let the engine find the greatest length for the budget, as `--max-model-len -1` does; 0 if none fits."""
    model = workers.config.model_config
    before = model.max_model_len, model.original_max_model_len
    model.max_model_len, model.original_max_model_len = model.hf_text_config.max_position_embeddings, -1
    try:
        return int(model.max_model_len) if admits(workers, budget) else 0
    finally:
        model.max_model_len, model.original_max_model_len = before


def started_with(workers: Workers, budget: int) -> dict[str, Any]:
    """Start the engine with the budget; return the KV cache that it makes and what it prints about it."""
    from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

    with printed() as lines:
        made = initialized(workers, budget)
    return {
        "blocks": made.num_blocks,
        "concurrency": get_max_concurrency_for_kv_cache_config(workers.config, made),
        "printed": [int(text.replace(",", "")) for text in PRINTED.findall("\n".join(lines))],
    }


def described(spec: Any) -> dict[str, Any]:
    """Describe a layer's spec or a group's; `raw` is the page size before padding."""
    from dataclasses import replace

    padded = hasattr(spec, "page_size_padded")
    return {
        "kind": type(spec).__name__,
        "block_size": spec.block_size,
        "page": spec.page_size_bytes,
        "raw": replace(spec, page_size_padded=None).page_size_bytes if padded else spec.page_size_bytes,
    }


def counted(specs: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the different layers, and how many of each."""
    layers: list[dict[str, Any]] = []
    for layer in map(described, specs):
        same = next((other for other in layers if other.items() >= layer.items()), None)
        if same:
            same["layers"] += 1
        else:
            layers.append(layer | {"layers": 1})
    return layers


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Log nothing below warnings."""
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def printed() -> Iterator[list[str]]:
    """Collect the log, including messages that vLLM logs only once and has logged before."""
    from vllm import logger

    logger._print_info_once.cache_clear()
    with logged() as lines:
        yield lines


def main(home: str, cases: str) -> dict[str, Any]:
    stand_in_for_diskcache()
    stand_in_for_flashinfer()
    import_latent_attention()
    import_kimi()
    one_rank(home)
    name_activations()
    register_nemotron_h()
    register_bailing()
    stand_in_for_vision()
    stand_in_for_gemma4()
    found = []
    for case in json.loads(Path(cases).read_text()):
        with tempfile.TemporaryDirectory(dir=home) as folder:
            Path(folder, "config.json").write_text(json.dumps(case["config"]))
            pretend_capability(*case["capability"])
            found.append(attempt(planned, folder, case["arguments"], case["budget"]))
    return {"found": found}
