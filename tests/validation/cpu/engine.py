"""vLLM's engine up to its KV caches: its own code with a stand-in for the executor, which answers for the workers."""

from __future__ import annotations

import contextlib
import copy
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any


class Workers:
    """A stand-in for an executor: workers with these specs and this many bytes each."""

    def __init__(self, config: Any, specs: list[dict[str, Any]]) -> None:
        self.config, self.specs = config, specs
        self.budgets: list[int] = []
        self.made: list[Any] = []

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        return self.specs

    def determine_available_memory(self) -> list[int]:
        return self.budgets

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        from vllm.v1.worker.worker_base import WorkerBase

        worker = SimpleNamespace(vllm_config=self.config)
        return [WorkerBase.get_supported_kv_cache_layouts(worker)] * len(self.specs)

    def set_kv_cache_layout(self, *_: Any) -> None:
        """Layers read the layout from the config, which is the same object here."""

    def initialize_from_config(self, made: list[Any]) -> None:
        self.made = made

    def compile_or_warm_up_model(self) -> float:
        return 0.0


def initialized(workers: Workers, *budgets: int) -> Any:
    """Let the engine make its KV caches, with one budget for all workers or one each; return the scheduler's config."""
    from vllm.v1.engine.core import EngineCore

    workers.budgets = list(budgets) if len(budgets) > 1 else [*budgets] * len(workers.specs)
    core = SimpleNamespace(model_executor=workers, collective_rpc=lambda *_, **__: None)
    return EngineCore._initialize_kv_caches(core, workers.config)


def specs_of(config: Any) -> list[dict[str, Any]]:
    """Settle the block size of each stage of pipeline parallelism and return its specs, as its workers do.

    The config has the layers of all stages, as one rank of tensor parallelism builds them.
    """
    from vllm.distributed.utils import get_pp_indices
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    stages = config.parallel_config.pipeline_parallel_size
    count = config.model_config.hf_text_config.num_hidden_layers
    compilation, cache = config.compilation_config, config.cache_config
    layers = compilation.static_forward_context
    specs = []
    for stage in range(stages):
        first, end = get_pp_indices(count, stage, stages)
        own = range(first, end if stage < stages - 1 else sys.maxsize)
        here = {name: layer for name, layer in layers.items() if _index(name, count) in own}
        compilation.static_forward_context = here
        config.cache_config = cache if stage == stages - 1 else copy.copy(cache)
        for layer in compilation.static_forward_context.values():
            if hasattr(layer, "cache_config"):  # an indexer, which asks it for the block size
                layer.cache_config = config.cache_config
        current_platform.update_block_size_for_backend(config)
        runner = SimpleNamespace(vllm_config=config, shared_kv_cache_layers={})
        specs.append(dict(GPUModelRunner.get_kv_cache_spec(runner)))
    compilation.static_forward_context = layers
    return specs


def _index(layer: str, count: int) -> int:
    """Return a layer's index in a model of `count` layers; draft layers come last.

    vLLM numbers the states of a Falcon-H1 after all attention layers.
    """
    return sys.maxsize - 1 if layer.startswith("mtp.") else int(re.findall(r"\b\d+\b", layer)[0]) % count


@contextlib.contextmanager
def ranks(count: int) -> Iterator[None]:
    """Make layers act as the first of `count` ranks of tensor parallelism."""
    from vllm.distributed import parallel_state

    group = parallel_state.get_tp_group()
    group.world_size = count
    try:
        yield
    finally:
        group.world_size = 1
