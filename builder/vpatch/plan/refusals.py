"""What vLLM refuses, or lays out in a way that is not planned, though its KV cache could be: by release.

Each was seen in the release's own code: `tests/plan/test_agreement.py` draws cases of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from vpatch.errors import Problem
from vpatch.plan.arithmetic import FP8, TURBOQUANT
from vpatch.plan.kv_cache import skipped_layers, stages_of
from vpatch.plan.model import FULL, Deployment, Model

FLASHINFER_HEADS = (64, 128, 256)
ADA = (8, 9)


@dataclass(frozen=True)
class Refusal:
    """A rule: of the releases `vllm`, where it `holds`, `option` of a deployment is the trouble."""

    vllm: str
    option: str
    because: str
    holds: Callable[[Model, Deployment], bool]


def refusals(model: Model, deployment: Deployment) -> Iterator[Problem]:
    """Give every rule that a deployment breaks."""
    for rule in RULES:
        if SpecifierSet(rule.vllm).contains(deployment.vllm.base_version) and rule.holds(model, deployment):
            value = getattr(deployment, rule.option)
            option = f"--{rule.option.replace('_', '-').removesuffix('-tokens')} {value}"
            yield Problem("vLLM refuses to start", f"{option}, vLLM {deployment.vllm}", rule.because)


def _some_quantised(model: Model, deployment: Deployment) -> bool:
    """Whether TurboQuant leaves some layers of a dense model alone, but not all."""
    skipped = skipped_layers(model, deployment)
    return not model.hybrid and deployment.kv_cache_dtype in TURBOQUANT and len(skipped) < len(model.layers)


def _stage_without_attention(model: Model, deployment: Deployment) -> bool:
    stages = stages_of(len(model.layers), deployment.pipeline_parallel_size)
    return model.hybrid and any(FULL not in model.layers[stage.start : stage.stop] for stage in stages)


RULES = (
    Refusal(
        ">=0.28",
        "pipeline_parallel_size",
        "TurboQuant on a dense model gives stages different block sizes: refused, or from 0.29 on many times as large",
        lambda model, deployment: _some_quantised(model, deployment) and deployment.pipeline_parallel_size > 1,
    ),
    Refusal(
        ">=0.29",
        "kv_cache_dtype",
        "on this GPU the layers that TurboQuant leaves alone run in FlashInfer, which has no layout in common with it",
        lambda model, deployment: (
            _some_quantised(model, deployment)
            and deployment.gpu.capability is not None
            and deployment.gpu.capability[0] == 10
            and model.attention.head_size in FLASHINFER_HEADS
        ),
    ),
    Refusal(
        "<0.30",
        "pipeline_parallel_size",
        "layers of multi-token prediction cannot be on a stage",
        lambda _, deployment: deployment.pipeline_parallel_size > 1 and deployment.speculative_tokens > 0,
    ),
    Refusal(
        ">=0.20",
        "pipeline_parallel_size",
        "a stage would have no attention layer: refused, or from 0.26 on laid out in a way that is not planned",
        _stage_without_attention,
    ),
    Refusal(
        ">=0.24",
        "kv_cache_dtype",
        "before Ada (compute capability 8.9) Triton has no FP8, and FlashInfer no heads of this size",
        lambda model, deployment: (
            deployment.kv_cache_dtype in FP8
            and deployment.gpu.capability is not None
            and deployment.gpu.capability < ADA
            and model.attention.head_size not in FLASHINFER_HEADS
        ),
    ),
    Refusal(
        ">=0.33",
        "kv_cache_dtype",
        "it is another float type than the model's",
        lambda model, deployment: (
            deployment.kv_cache_dtype in {"bfloat16", "float16"} and deployment.kv_cache_dtype != model.dtype
        ),
    ),
)
