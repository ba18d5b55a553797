"""Multi-head latent attention (MLA): the block size that a release's attention kernels want, and what they keep.

Source: `CudaPlatform.get_valid_backends` and the backends in `vllm/v1/attention/backends/mla`. Wheels have FlashMLA and
FlashAttention 3, and FlashInfer is required. Kernels differ by compute capability; TRITON_MLA takes what they do not.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from vpatch.plan import Attention, Latent, Model
from vpatch.plan.deployment import BLACKWELL, FP8, HOPPER, KERNEL_BLOCK, Deployment

# Tokens of a block, by kernel: FLASHMLA, FLASHINFER_MLA and CUTLASS_MLA. Those of FLASH_ATTN_MLA and TRITON_MLA are
# vLLM's default.
_FLASHMLA, _FLASHINFER, _CUTLASS = 64, 32, 128
_INDEXER = 64  # of all kernels for sparse attention
_PACKED = 656  # bytes of a token in FLASHMLA_SPARSE with FP8: `fp8_ds_mla`
_SCALED, _SCALE = 128, 4  # elements of an indexer's key that share a scale, and its bytes
_MOST = 64 << 10  # cached tokens whose keys and values are made at once, if there are fewer in a block for each request


def block_size(attention: Attention, latent: Latent, deployment: Deployment) -> int:
    """Return the tokens of a block."""
    if latent.index:
        return _INDEXER
    if attention.head_size in deployment.release.latent_sizes:
        if deployment.gpu.major == HOPPER and deployment.kv_cache_dtype in FP8:
            return _FLASHMLA
        if deployment.gpu.major == BLACKWELL:
            return _FLASHINFER if latent.nope in deployment.release.flashinfer_nopes else _CUTLASS
    return KERNEL_BLOCK


def with_default(model: Model, deployment: Deployment) -> Deployment:
    """Return the deployment with the type that a release takes for its KV cache, if `auto` is not the model's."""
    chosen = deployment.gpu.major == BLACKWELL and model.architecture in deployment.release.fp8_on_blackwell
    return replace(deployment, kv_cache_dtype="fp8") if chosen and deployment.kv_cache_dtype == "auto" else deployment


def packed(attention: Attention, latent: Latent, deployment: Deployment) -> int:
    """Return a token's bytes in a layer that stores FP8 in its own format, else 0; `attention` is a rank's part."""
    if not latent.index or deployment.kv_cache_dtype not in FP8:
        return 0
    release = deployment.release
    nopes = set(release.flashinfer_nopes) - {min(release.flashinfer_nopes)}
    few = release.flashinfer_sparse_heads
    flashinfer = latent.nope in nopes and (not few or attention.heads <= few)
    return 0 if flashinfer and deployment.gpu.major == BLACKWELL else _PACKED


def indexers(latent: Latent, deployment: Deployment, layers: range) -> tuple[int, int]:
    """Return how many layers have an indexer, and the bytes of a token in it."""
    if not latent.index:
        return 0, 0
    count = sum(not deployment.release.shares_indexers or index not in latent.shares for index in layers)
    return count, latent.index + latent.index // _SCALED * _SCALE


def aligned(latent: Latent, deployment: Deployment, size: int, row: int) -> int:
    """Return the bytes of a block of `size`, in a release that wants whole `row`s: `MLAAttention.get_kv_cache_spec`."""
    wanted = latent.index and deployment.gpu.major == BLACKWELL and deployment.release.whole_rows
    return ceil(size / row) * row if wanted else size


def context(deployment: Deployment, block: int) -> int:
    """Return how many cached tokens of prompts that go on have keys and values at once, by the size of a block.

    Source: `MLACommonMetadataBuilder.determine_chunked_prefill_workspace_size`.
    """
    blocks = deployment.max_num_seqs * block
    tokens = min(max(8 * deployment.max_model_len, 4 * blocks), _MOST)
    return max(tokens, blocks) if deployment.release.latent_blocks else ceil(tokens / block) * block
