"""What of vLLM's KV cache arithmetic differs between releases. It is held against the releases' own code by the tests.

Everywhere else in vpatch the code's shape decides, never the version. Here there is no code to look at: a plan is made
before anything is installed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version

from vpatch.errors import Failure, Problem

OLDEST, NEWEST = Version("0.18.0"), Version("0.33.0")
"""The releases whose arithmetic was looked at."""

FLOATS = ("auto", "bfloat16", "float16")
FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2")
TURBOQUANT = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")


@dataclass(frozen=True)
class Arithmetic:
    """The traits of a release.

    `prints_slots`: its log gives blocks // groups * block size as the size of the KV cache; later ones give concurrency
    times length. `default_utilization` is that of `--gpu-memory-utilization`. `counts_graphs`: the estimate for CUDA
    graphs is taken from the KV cache's memory. `caches_hybrid_prefixes`: prefix caching is on by default for hybrid
    models, too. `batch_holds_block`: with it, vLLM refuses to start if a block is larger than a batch.
    `admits_all_groups`: when it asks whether a request fits, it counts the blocks of all groups of layers, not of one.
    `aligns_skipped`: where a dense model keeps some layers unquantised, the block size is such that the pages of the
    others, were they not packed, are as large. `keeps_null_block`: one block is taken off when it is asked whether a
    request fits. `block_per_request`: with CUDA graphs, it refuses to start if a model whose layers keep states has
    fewer blocks than a batch has requests. `exports_states`: kernels that put out states within a prefill want one more
    block for it, and blocks of 64 tokens. `decode_buffers`: TurboQuant's decode has buffers of its own in every layer.
    `large_batch` is the default of `--max-num-batched-tokens` on GPUs of 160 GiB and more.
    """

    kv_cache_dtypes: tuple[str, ...] = (*FLOATS, *FP8)
    prints_slots: bool = True
    default_utilization: float = 0.9
    counts_graphs: bool = False
    caches_hybrid_prefixes: bool = False
    batch_holds_block: bool = True
    admits_all_groups: bool = False
    aligns_skipped: bool = False
    keeps_null_block: bool = False
    decode_buffers: bool = False
    block_per_request: bool = False
    exports_states: bool = False
    large_batch: int = 8192


SINCE: dict[str, dict[str, Any]] = {
    "0.19.0": {"admits_all_groups": True},
    "0.20.0": {
        "kv_cache_dtypes": (*FLOATS, *FP8, *TURBOQUANT),
        "default_utilization": 0.92,
        "counts_graphs": True,
        "decode_buffers": True,
        "block_per_request": True,
    },
    "0.20.1": {"prints_slots": False},
    "0.21.0": {"decode_buffers": False},
    "0.25.0": {"aligns_skipped": True},
    "0.26.0": {"caches_hybrid_prefixes": True},
    "0.27.0": {"batch_holds_block": False},
    "0.28.0": {"large_batch": 16384},
    "0.29.0": {"keeps_null_block": True},
    "0.33.0": {"exports_states": True},
}
"""Traits by the release that brought them. Read from the source of every release from `OLDEST` to `NEWEST`."""


def arithmetic_of(vllm: Version) -> Arithmetic:
    """Give the traits of a release, or of a build of it: what comes behind its numbers (rc, dev, local) plays no part.

    Raises:
        Failure: it is older or newer than any that was looked at.
    """
    release = Version(vllm.base_version)
    if not OLDEST <= release <= NEWEST:
        cause = f"the arithmetic of vLLM {OLDEST} to {NEWEST} is known"
        raise Failure(Problem("unknown release", f"vLLM {vllm}", cause))
    found = Arithmetic()
    for since, traits in SINCE.items():
        if release >= Version(since):
            found = replace(found, **traits)
    return found
