"""Helpers of the probes: make a config and layers as vLLM does, and record the outcome of an attempt."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any


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
