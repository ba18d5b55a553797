"""Multi-head latent attention (MLA): the block size that a release's attention kernels want, and what they refuse.

Source: `CudaPlatform.get_valid_backends` and the backends in `vllm/v1/attention/backends/mla`. Wheels have FlashMLA and
FlashAttention 3, and FlashInfer is required. Kernels differ by compute capability; TRITON_MLA takes what they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from vpatch.errors import Problem
from vpatch.plan import Attention, Latent, Model
from vpatch.plan.deployment import BLACKWELL, FP8, Deployment, arithmetic_of

_HOPPER = 9  # a major compute capability that, as Blackwell, has kernels of its own
_TRITON_FP8 = (8, 9)
_TYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3")
# Tokens of a block, by kernel: FLASHMLA, FLASHINFER_MLA and CUTLASS_MLA. Those of FLASH_ATTN_MLA and TRITON_MLA are
# vLLM's default.
_FLASHMLA, _FLASHINFER, _CUTLASS, _DEFAULT = 64, 32, 128, 16
_INDEXER = 64  # of all kernels for sparse attention
_PACKED = 656  # bytes of a token in FLASHMLA_SPARSE with FP8: `fp8_ds_mla`
_SCALED, _SCALE = 128, 4  # elements of an indexer's key that share a scale, and its bytes
_MOST = 64 << 10  # cached tokens whose keys and values are made at once, if there are fewer in a block for each request


def block_size(attention: Attention, latent: Latent, deployment: Deployment) -> int:
    """Return the tokens of a block."""
    if latent.index:
        return _INDEXER
    traits, major = arithmetic_of(deployment.vllm), deployment.gpu.major
    if attention.head_size not in traits.latent_sizes:
        return _DEFAULT
    if major == _HOPPER:
        return _FLASHMLA if deployment.kv_cache_dtype in FP8 else _DEFAULT
    if major == BLACKWELL:
        return _FLASHINFER if latent.nope in traits.flashinfer_nopes else _CUTLASS
    return _DEFAULT


def with_default(model: Model, deployment: Deployment) -> Deployment:
    """Return the deployment with the type that a release takes for its KV cache, if `auto` is not the model's."""
    blackwell = deployment.gpu.major == BLACKWELL
    chosen = blackwell and model.architecture in arithmetic_of(deployment.vllm).fp8_on_blackwell
    return replace(deployment, kv_cache_dtype="fp8") if chosen and deployment.kv_cache_dtype == "auto" else deployment


def packed(attention: Attention, latent: Latent, deployment: Deployment) -> int:
    """Return a token's bytes in a layer that stores FP8 in its own format, else 0; `attention` is a rank's part."""
    if not latent.index or deployment.kv_cache_dtype not in FP8:
        return 0
    traits, major = arithmetic_of(deployment.vllm), (deployment.gpu.capability or (_HOPPER, 0))[0]
    nopes = set(traits.flashinfer_nopes) - {min(traits.flashinfer_nopes)}
    few = traits.flashinfer_sparse_heads
    flashinfer = major == BLACKWELL and latent.nope in nopes and (not few or attention.heads <= few)
    return 0 if flashinfer else _PACKED


def indexers(latent: Latent, deployment: Deployment, layers: range) -> tuple[int, int]:
    """Return how many layers have an indexer, and the bytes of a token in it."""
    if not latent.index:
        return 0, 0
    shared = arithmetic_of(deployment.vllm).shares_indexers
    count = sum(not shared or index not in latent.shares for index in layers)
    return count, latent.index + latent.index // _SCALED * _SCALE


def aligned(latent: Latent, deployment: Deployment, size: int, row: int) -> int:
    """Return the bytes of a block of `size`, in a release that wants whole `row`s: `MLAAttention.get_kv_cache_spec`."""
    blackwell = deployment.gpu.major == BLACKWELL
    wanted = latent.index and blackwell and arithmetic_of(deployment.vllm).whole_rows
    return ceil(size / row) * row if wanted else size


def context(deployment: Deployment, block: int) -> int:
    """Return how many cached tokens of prompts that go on have keys and values at once, with a block of so many.

    Source: `MLACommonMetadataBuilder.determine_chunked_prefill_workspace_size`.
    """
    blocks = deployment.max_num_seqs * block
    tokens = min(max(8 * deployment.max_model_len, 4 * blocks), _MOST)
    return max(tokens, blocks) if arithmetic_of(deployment.vllm).latent_blocks else ceil(tokens / block) * block


def refused(attention: Attention, latent: Latent, deployment: Deployment) -> Iterator[Problem]:
    """Yield why a release has no kernels for the model, or none for a KV cache of this type."""
    dtype, capability = deployment.kv_cache_dtype, deployment.gpu.capability or (99, 0)
    traits, heads = arithmetic_of(deployment.vllm), [latent.nope, latent.rope, latent.value]
    if traits.latent_heads and heads not in traits.latent_heads:
        where = f"{latent.nope} + {latent.rope} and {latent.value} elements of a key and a value"
        yield Problem("no kernel for latent attention", where, f"vLLM {deployment.vllm} has none for prompts")
    if latent.index and capability[0] not in {_HOPPER, BLACKWELL, 99}:
        where = f"compute capability {capability[0]}.{capability[1]}"
        yield Problem("no kernel for sparse latent attention", where, "plan knows those of Hopper and Blackwell's 10.x")
    if dtype not in _TYPES or (latent.index and dtype == "fp8_e4m3"):
        cause = "no kernel for latent attention takes it; auto and fp8 have some"
        yield Problem("no such KV cache", f"--kv-cache-dtype {dtype}", cause)
    ours = block_size(attention, latent, deployment) == _DEFAULT
    if dtype in FP8 and ours and capability < _TRITON_FP8 and traits.checks_latent_fp8:
        cause = "before Ada (compute capability 8.9) Triton has no FP8"
        yield Problem("no such KV cache", f"--kv-cache-dtype {dtype}", cause)
