"""Helpers of the probes: make a config, layers and KV caches as vLLM does, record attempts, and print the results.

`python -m tests.validation.cpu.probing NAME HOME ARGUMENTS` runs the probe NAME on a simulated H100.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from tests.validation.cpu.platform import pretend_h100, single_rank


def report(name: str, *arguments: str) -> None:
    """Call the `main` of a module beside this one, and print what it returns as one JSON object.

    What vLLM prints meanwhile goes to standard error.
    """
    with contextlib.redirect_stdout(sys.stderr):
        found = import_module(f"tests.validation.cpu.{name}").main(*arguments)
    json.dump(found, sys.stdout)


def one_rank(home: str, config: Any = None) -> None:
    """Make the process groups that a config needs on one rank, and bfloat16 the default type, as vLLM does."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(config or VllmConfig()):
        single_rank(home)
    torch.set_default_dtype(torch.bfloat16)


def engine_config(model: str, **arguments: Any) -> Any:
    """Make the config as `vllm serve MODEL --kv-cache-dtype ...` does."""
    from vllm.engine.arg_utils import EngineArgs

    fixed = {"skip_tokenizer_init": True, "max_model_len": 8192, "max_num_batched_tokens": 8192}
    return EngineArgs(**{"model": model} | fixed | arguments).create_engine_config()


def layers_of(config: Any) -> dict[str, Any]:
    """Build a model without memory, settle the block size, and return its layers that have a KV cache or state."""
    from vllm.platforms import current_platform

    layers = modules_of(config)
    current_platform.update_block_size_for_backend(config)
    return layers


def modules_of(config: Any) -> dict[str, Any]:
    """Build a model and its draft, if any, without memory; return the layers that have a KV cache or state."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.models import ModelRegistry

    models = [config.model_config]
    draft = config.speculative_config and config.speculative_config.draft_model_config
    if draft is not None and draft is not config.model_config:  # ngram has the target's
        models.append(draft)
    for model in models:
        kind, _ = ModelRegistry.resolve_model_cls(model.architectures, model)
        with set_current_vllm_config(config), torch.device("meta"):
            kind(vllm_config=config)
    layers = config.compilation_config.static_forward_context
    return {name: layer for name, layer in layers.items() if isinstance(layer, AttentionLayerBase)}


def kv_cache_of(config: Any, budget: int) -> tuple[dict[str, Any], Any]:
    """Build a model without memory; return its layers' specs and the KV cache of so many bytes."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

    specs = {name: layer.get_kv_cache_spec(config) for name, layer in layers_of(config).items()}
    (kv_cache,) = get_kv_cache_configs(config, [specs], [budget])
    return specs, kv_cache


def runner_of(config: Any, kv_cache: Any, **more: Any) -> Any:
    """Make a V1 model runner without a device; `more` is what it also needs to have."""
    import torch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    runner = object.__new__(GPUModelRunner)
    vars(runner).update(
        vllm_config=config,
        cache_config=config.cache_config,
        compilation_config=config.compilation_config,
        kv_cache_config=kv_cache,
        device=torch.device("meta"),
        attn_groups=[],
        runner_only_attn_layers=set(),
        kv_sharing_fast_prefill_eligible_layers=set(),
        **more,
    )
    return runner


def attempt(act: Callable[..., None], *arguments: Any, **options: Any) -> dict[str, Any]:
    """Return what `act` recorded and the error that it raised."""
    found: dict[str, Any] = {}
    try:
        act(found, *arguments, **options)
    except Exception as error:  # the tests decide which errors are expected
        found["error"] = [type(error).__name__, str(error)]
    return found


def outcome(act: Callable[..., None], *arguments: Any, **options: Any) -> dict[str, Any]:
    """Return what `act` recorded, the error that it raised and what it logged about TurboQuant."""
    with logged() as lines:
        found = attempt(act, *arguments, **options)
    return found | {"log": [line for line in lines if line.startswith("TQ")]}


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Collect the messages of vLLM's loggers."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Handler()
    logging.getLogger("vllm").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("vllm").removeHandler(handler)


if __name__ == "__main__":
    pretend_h100()
    report(*sys.argv[1:])
