"""Multi-head latent attention (MLA): the block size that a release's attention kernels want, and what they refuse.

Source: `CudaPlatform.get_valid_backends` and the backends in `vllm/v1/attention/backends/mla`. Wheels have FlashMLA and
FlashAttention 3, and FlashInfer is required. Kernels differ by compute capability; TRITON_MLA takes what they do not.
"""

from __future__ import annotations

from collections.abc import Iterator

from vpatch.errors import Problem
from vpatch.plan import Attention, Latent
from vpatch.plan.deployment import FP8, TURBOQUANT, Deployment, arithmetic_of

_HOPPER, _BLACKWELL = 9, 10  # major compute capabilities with kernels of their own
_TRITON_FP8 = (8, 9)
# Tokens of a block, by kernel: FLASHMLA, FLASHINFER_MLA and CUTLASS_MLA. Those of FLASH_ATTN_MLA and TRITON_MLA are
# vLLM's default.
_FLASHMLA, _FLASHINFER, _CUTLASS, _DEFAULT = 64, 32, 128, 16
_MOST = 64 << 10  # cached tokens whose keys and values are made at once, if there are fewer in a block for each request


def block_size(attention: Attention, latent: Latent, deployment: Deployment) -> int:
    """Return the tokens of a block."""
    traits, major = arithmetic_of(deployment.vllm), (deployment.gpu.capability or (0, 0))[0]
    if attention.head_size not in traits.latent_sizes:
        return _DEFAULT
    if major == _HOPPER:
        return _FLASHMLA if deployment.kv_cache_dtype in FP8 else _DEFAULT
    if major == _BLACKWELL:
        return _FLASHINFER if latent.nope in traits.flashinfer_nopes else _CUTLASS
    return _DEFAULT


def context(attention: Attention, latent: Latent, deployment: Deployment) -> int:
    """Return how many cached tokens of prompts that go on have keys and values at once.

    Source: `MLACommonMetadataBuilder.determine_chunked_prefill_workspace_size`.
    """
    blocks = deployment.max_num_seqs * block_size(attention, latent, deployment)
    return max(min(max(8 * deployment.max_model_len, 4 * blocks), _MOST), blocks)


def refused(attention: Attention, latent: Latent, deployment: Deployment) -> Iterator[Problem]:
    """Yield why a release has no kernels for the model, or none for a KV cache of this type."""
    dtype, capability = deployment.kv_cache_dtype, deployment.gpu.capability or (99, 0)
    traits, heads = arithmetic_of(deployment.vllm), [latent.nope, latent.rope, latent.value]
    if traits.latent_heads and heads not in traits.latent_heads:
        where = f"{latent.nope} + {latent.rope} and {latent.value} elements of a key and a value"
        yield Problem("no kernel for latent attention", where, f"vLLM {deployment.vllm} has none for prompts")
    if dtype in TURBOQUANT or dtype == "fp8_e5m2":
        cause = "no kernel for latent attention takes it; auto and fp8 have some"
        yield Problem("no such KV cache", f"--kv-cache-dtype {dtype}", cause)
    ours = block_size(attention, latent, deployment) == _DEFAULT
    if dtype in FP8 and ours and capability < _TRITON_FP8 and traits.checks_latent_fp8:
        cause = "before Ada (compute capability 8.9) Triton has no FP8"
        yield Problem("no such KV cache", f"--kv-cache-dtype {dtype}", cause)
