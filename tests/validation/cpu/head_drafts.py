"""Heads of an EAGLE draft and its target on the real classes; the draft has a head of its own."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Config = Callable[..., Any]


def draft(found: dict[str, Any], engine_config: Config, target: Path, own: Path, *, alike: bool = False) -> None:
    """Build a target and its EAGLE draft from their own configs, and ask both runners whether they share the head.

    If `alike`, the draft's head holds the same values as the target's.
    """
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model

    speculative = {"method": "eagle", "model": str(own), "num_speculative_tokens": 2}
    config = engine_config(target, speculative_config=speculative)
    with set_current_vllm_config(config):
        big = initialize_model(config)
        small = initialize_model(config, model_config=config.speculative_config.draft_model_config)
    found["draft"] = type(small).__name__
    found["dtypes"] = [str(model.lm_head.weight.dtype) for model in (big, small)]
    found["shapes"] = [list(model.lm_head.weight.shape) for model in (big, small)]
    for model, value in ((big, 1.0), (small, 1.0 if alike else 2.0)):
        model.lm_head.weight.data.copy_(torch.full(model.lm_head.weight.shape, value))
    small.has_own_lm_head = True
    found["V2"] = _second_runner(small, big)
    found["V1"] = _first_runner(small, big, config)


def _first_runner(small: Any, big: Any, config: Any) -> bool:
    try:
        module = import_module("vllm.v1.spec_decode.llm_base_proposer")
    except ModuleNotFoundError:  # up to 0.19
        module = import_module("vllm.v1.spec_decode.eagle")
    proposer = SimpleNamespace(model=small, vllm_config=config, use_local_argmax_reduction=False)
    module.SpecDecodeBaseProposer._maybe_share_lm_head(proposer, big)
    return small.lm_head is big.lm_head


def _second_runner(small: Any, big: Any) -> bool | None:
    """None if this release does not compare heads."""
    module = import_module("vllm.v1.worker.gpu.spec_decode.eagle.utils")
    share = getattr(module, "_should_share", None)
    return share(small, "has_own_lm_head", small.lm_head, big.lm_head) if share else None
