"""What vLLM does where nothing is said, as of a release and for a GPU."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from vpatch.plan.arithmetic import arithmetic_of
from vpatch.plan.model import GIB, Gpu, Model

LARGE, LARGEST = 70 * GIB, 160 * GIB
"""Memory from which on `vllm serve` takes larger batches. Source: `EngineArgs.get_batch_defaults`."""


def defaults(model: Model, vllm: Version, gpu: Gpu) -> dict[str, Any]:
    """Give the fields of `Deployment` that a release sets by itself.

    Raises:
        Failure: the release is not known.
    """
    traits = arithmetic_of(vllm)
    large = gpu.memory >= LARGE
    batch = traits.large_batch if gpu.memory >= LARGEST else 8192 if large else 2048
    return {
        "max_model_len": model.max_position_embeddings,
        "max_num_seqs": 1024 if large else 256,
        "max_num_batched_tokens": batch,
        "gpu_memory_utilization": traits.default_utilization,
        "enable_prefix_caching": traits.caches_hybrid_prefixes or not model.hybrid,
    }
