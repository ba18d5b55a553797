"""What a vLLM makes of KV caches: for each case of a file, the sizes that its own code comes to, as JSON.

Everything between a config.json and the number of tokens that is printed is the release's own code: the engine's config,
the layers (on the meta device), the block size, the specs, and `EngineCore._initialize_kv_caches`. Only its executor is a
stand-in, which says what workers would: their specs, and how much memory they have.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.cpu.platform import pretend_capability, pretend_h100, single_rank, stand_in_for_diskcache
from tests.cpu.probing import attempt, engine_config, logged, modules_of

PRINTED = re.compile(r"(?:GPU|CUDA) KV cache size: ([\d,]+) tokens")
CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")
MOST = 1 << 60  # bytes; more than the square of any block, so that their number tells its size


class Workers:
    """Stands in for an executor: workers with these specs, and so many bytes each."""

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
        """The layers have it from the config, which is the same object here."""

    def initialize_from_config(self, made: list[Any]) -> None:
        self.made = made

    def compile_or_warm_up_model(self) -> float:
        return 0.0


def initialized(workers: Workers, *budgets: int) -> Any:
    """Let the engine make its KV caches, of a budget for every worker or of one for each; give the scheduler's config."""
    from vllm.v1.engine.core import EngineCore

    workers.budgets = list(budgets) if len(budgets) > 1 else [*budgets] * len(workers.specs)
    core = SimpleNamespace(model_executor=workers, collective_rpc=lambda *_, **__: None)
    return EngineCore._initialize_kv_caches(core, workers.config)


def smallest(holds: Callable[[int], bool]) -> int:
    """Give the least number for which it `holds`, as it then does for all that are greater."""
    high = 1
    while not holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def specs_of(config: Any) -> dict[str, Any]:
    """Give the KV cache specs of one worker that has all the layers."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    return dict(GPUModelRunner.get_kv_cache_spec(SimpleNamespace(vllm_config=config, shared_kv_cache_layers={})))


def staged(config: Any) -> list[dict[str, Any]]:
    """Settle the block size of each stage of pipeline parallelism, as its workers do; give their specs.

    Draft layers are the last one's.
    """
    from vllm.distributed.utils import get_pp_indices
    from vllm.platforms import current_platform

    stages = config.parallel_config.pipeline_parallel_size
    count = config.model_config.hf_text_config.num_hidden_layers
    compilation, cache, layers = config.compilation_config, config.cache_config, config.compilation_config.static_forward_context
    specs = []
    for stage in range(stages):
        first, end = get_pp_indices(count, stage, stages)
        own = range(first, end if stage < stages - 1 else sys.maxsize)
        compilation.static_forward_context = {name: layer for name, layer in layers.items() if index_of(name) in own}
        config.cache_config = cache if stage == stages - 1 else copy.copy(cache)
        current_platform.update_block_size_for_backend(config)
        specs.append(specs_of(config))
    compilation.static_forward_context = layers
    return specs


def index_of(layer: str) -> int:
    """Give a layer's place among those of the model; draft layers come after all."""
    return sys.maxsize - 1 if layer.startswith("mtp.") else int(re.findall(r"\.(\d+)\.", layer)[0])


@contextlib.contextmanager
def ranks(count: int) -> Iterator[None]:
    """Make layers believe that they are the first of so many ranks of tensor parallelism."""
    from vllm.distributed import parallel_state

    group = parallel_state.get_tp_group()
    group.world_size = count
    try:
        yield
    finally:
        group.world_size = 1


def described(spec: Any) -> dict[str, Any]:
    """Give what there is to know about a layer or a group of them."""
    raw = getattr(spec, "real_page_size_bytes", None) or getattr(spec, "unpadded_page_size_bytes", None)
    if raw is None and hasattr(spec, "shapes"):
        from dataclasses import replace

        raw = replace(spec, page_size_padded=None).page_size_bytes
    return {
        "kind": type(spec).__name__,
        "block_size": spec.block_size,
        "page": spec.page_size_bytes,
        "raw": raw,
    }


def planned(found: dict[str, Any], path: str, arguments: dict[str, Any], budget: int) -> None:
    """Take a model through all that decides on the size of its KV cache."""
    from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

    found["stage"] = "config"
    shared = {"enforce_eager": True, "distributed_executor_backend": "mp"}
    config = engine_config(path, **shared | arguments)
    cache = config.cache_config
    found |= {"mamba_cache_mode": cache.mamba_cache_mode, "skip_layers": list(getattr(cache, "kv_cache_dtype_skip_layers", ()))}
    found["stage"] = "layers"
    with ranks(config.parallel_config.tensor_parallel_size):
        modules = modules_of(config)
        found["stage"] = "block size"
        specs = staged(config)
    found["backends"] = sorted({layer.get_attn_backend().get_name() for layer in modules.values()})
    found |= {"block_size": cache.block_size, "mamba_page_size_padded": cache.mamba_page_size_padded}
    found["layers"] = counted(spec for stage in specs for spec in stage.values())
    found["stage"] = "kv cache"
    workers = Workers(config, specs)

    def admitted(budget: int) -> bool:
        try:
            initialized(workers, budget)
        except ValueError:
            return False
        return True

    with quiet():
        huge = [MOST << 20] * len(workers.specs)
        sizes = found["bytes_per_block"] = [
            MOST // initialized(workers, *huge[:stage], MOST, *huge[stage + 1 :]).num_blocks
            for stage in range(len(workers.specs))
        ]
        enough = max(sizes) * smallest(lambda count: admitted(count * max(sizes)))
        found["needed"] = smallest(admitted) if admitted(enough - 1) else enough
        made = initialized(workers, found["needed"])
        found["longest"] = attempt(longest, workers, budget).get("max_model_len", 0)
    found["groups"] = [
        described(group.kv_cache_spec)
        | {"layers": sum(len(worker.kv_cache_groups[index].layer_names) for worker in workers.made)}
        for index, group in enumerate(made.kv_cache_groups)
    ]
    found["layout"] = getattr(cache, "kv_cache_layout", None)
    found["stage"] = "admission"
    with printed() as lines:
        made = initialized(workers, budget)
    found["blocks"] = made.num_blocks
    found["concurrency"] = get_max_concurrency_for_kv_cache_config(config, made)
    found["printed"] = [int(text.replace(",", "")) for text in PRINTED.findall("\n".join(lines))]
    found["printed_concurrency"] = CONCURRENCY.findall("\n".join(lines))
    del found["stage"]


def longest(found: dict[str, Any], workers: Workers, budget: int) -> None:
    """Let the engine find the greatest length for the budget, as `--max-model-len -1` does."""
    model = workers.config.model_config
    before = model.max_model_len, model.original_max_model_len
    model.max_model_len, model.original_max_model_len = model.hf_text_config.max_position_embeddings, -1
    try:
        initialized(workers, budget)
        found["max_model_len"] = model.max_model_len
    finally:
        model.max_model_len, model.original_max_model_len = before


def counted(specs: Any) -> list[dict[str, Any]]:
    """Give the different layers there are, and how many of each."""
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
    """Log nothing but warnings."""
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def printed() -> Iterator[list[str]]:
    """Collect what is logged, also what was logged before and is so only once."""
    from vllm import logger

    for name in ("_print_info_once", "_print_warning_once"):
        getattr(logger, name).cache_clear()
    with logged() as lines:
        yield lines


def main(home: str, cases: str) -> None:
    """Do every case of the file."""
    with contextlib.redirect_stdout(sys.stderr):
        pretend_h100()
        stand_in_for_diskcache()
        import torch
        from vllm.config import VllmConfig, set_current_vllm_config

        with set_current_vllm_config(VllmConfig()):
            single_rank(home)
        torch.set_default_dtype(torch.bfloat16)
        found = []
        for case in json.loads(Path(cases).read_text()):
            with tempfile.TemporaryDirectory(dir=home) as folder:
                Path(folder, "config.json").write_text(json.dumps(case["config"]))
                pretend_capability(*case.get("capability", (9, 0)))
                found.append(attempt(planned, folder, case["arguments"], case["budget"]))
    json.dump({"found": found}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
