"""Which calls of TurboQuant's decode attention and of its store the kernels of vpatch take, and their warm-up.

Every other call goes to vLLM's kernel, and the log says why, once for each reason.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from vllm._vpatch.turboquant_decode import decode_attention
from vllm._vpatch.turboquant_decode_launch import batches_to_compile
from vllm._vpatch.turboquant_decode_store import MANY, rotated_keys, unrotated
from vllm._vpatch.turboquant_decode_supported import bits_of, layers_of, need_of, no_gpu, supported, unlike_vllms
from vllm._vpatch.turboquant_decode_switch import turn_off, why_off

if TYPE_CHECKING:
    import torch
    from vllm._vpatch.turboquant_decode_supported import Layer
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionImpl
    from vllm.v1.worker.gpu_worker import Worker

logger = logging.getLogger(__name__)

SHARED = 8  # tokens of a window, where all tokens of a call belong to one request
LONGEST_CHUNK = 128  # tokens of a prompt's piece that vLLM attends from by the decode kernel


def decode_if_supported(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    Pi: torch.Tensor,  # noqa: N803 - upstream's name
    centroids: torch.Tensor,
    scale: float,
    mse_bits: int,
    key_packed_size: int,
    value_quant_bits: int,
    *,
    key_fp8: bool = False,
    norm_correction: bool = False,
    mid_o_buf: torch.Tensor | None = None,
    output_buf: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Attend as vLLM's `triton_turboquant_decode_attention` does, whose arguments these are, or return None.

    Tokens share what is read of the cache if they belong to one request. Then there is one length for several tokens
    (see `turboquant_decode_drafts`), or the rows of the block table are one and the same, as for a piece of a prompt.
    """
    window = _window(len(query), len(seq_lens), block_table)
    reason = why_off() or (None if key_fp8 else unlike_vllms(Pi, query.shape[2]))
    reason = reason or supported(
        query,
        kv_cache,
        block_table,
        seq_lens,
        mse_bits,
        key_packed_size,
        value_quant_bits,
        key_fp8=key_fp8,
        window=window,
    )
    if reason is not None:
        _say_once(reason)
        return None
    return decode_attention(
        query,
        kv_cache,
        block_table,
        seq_lens,
        centroids,
        scale,
        mse_bits,
        value_quant_bits,
        key_fp8=key_fp8,
        norm_correction=norm_correction,
        output_buf=output_buf,
        scratch=mid_o_buf,
        window=window,
    )


def normed_and_rotated(key: torch.Tensor, rotation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return new keys divided by their norms and rotated, and the norms, as vLLM's `triton_turboquant_store` has them.

    Args:
        key: (tokens, KV heads, head size).
        rotation: (head size, head size), float32.

    Returns:
        (tokens * KV heads, head size) and (tokens * KV heads, 1), both float32.
    """
    reason = why_off() or unlike_vllms(rotation, key.shape[2]) or unrotated(key)
    if reason is None:
        found: tuple[torch.Tensor, torch.Tensor] = rotated_keys(key)
        return found
    _say_once(f"{reason} (new keys)")
    flat = key.float().reshape(-1, key.shape[2])
    norms = flat.norm(dim=1, keepdim=True)
    return (flat / (norms + 1e-8)) @ rotation, norms


def _window(tokens: int, lengths: int, block_table: torch.Tensor) -> int:
    if lengths < tokens:
        return tokens // lengths
    return SHARED if tokens > 1 and block_table.stride(0) == 0 else 1


def warm_up(worker: Worker) -> None:
    """Compile all that decode steps and pieces of prompts can need, before the engine is ready.

    If a kernel does not compile or run on this GPU, a warning says so, and vLLM's kernels do all work from then on.
    """
    import torch

    if why_off() or no_gpu():
        return
    config = worker.vllm_config
    dtype, requests_at_most = config.model_config.dtype, config.scheduler_config.max_num_seqs
    try:
        with torch.inference_mode():
            for layer in _different(config):
                for requests, length, decoded in _batches(layer.impl, requests_at_most):
                    # `cpu` waits, so that errors of the kernels come up here.
                    _attend(layer, requests, length, decoded=decoded, dtype=dtype).cpu()
                _rotate(layer, dtype)
    except Exception as error:
        turn_off(f"its warm-up failed: {type(error).__name__}: {error}")
        logger.warning("TurboQuant decodes by vLLM's own kernels. Those of vpatch failed on this GPU.", exc_info=error)


def _different(config: VllmConfig) -> Iterator[Layer]:
    """Yield one TurboQuant layer for each set of what the kernels are compiled for."""
    seen = set()
    for layer in layers_of(config):
        impl, stored = layer.impl, layer.kv_cache
        if not hasattr(impl, "tq_config"):  # a subclass with a format and kernels of its own, such as UltraQuant's
            continue
        shape = (impl.num_heads, impl.num_kv_heads, impl.head_size, impl.kv_cache_dtype)
        key = (*shape, *stored.shape[1:], *stored.stride(), stored.data_ptr() % 16)
        if stored.numel() and key not in seen:
            seen.add(key)
            yield layer


def _batches(impl: TurboQuantAttentionImpl, max_num_seqs: int) -> Iterator[tuple[int, int, bool]]:
    """Yield requests and tokens of each, and whether these are decoded, so that all launch parameters are met."""
    heads, bits = impl.num_kv_heads, bits_of(impl.tq_config)
    group = impl.num_heads // heads
    window = getattr(need_of(impl), "window", 1)
    for length in {1, window}:
        for requests in batches_to_compile(max_num_seqs, heads, impl.head_size, group * length, bits):
            yield requests, length, True
    for windows in batches_to_compile(LONGEST_CHUNK // SHARED, heads, impl.head_size, group * SHARED, bits):
        yield 1, windows * SHARED, False


def _attend(layer: Layer, requests: int, length: int, *, decoded: bool, dtype: torch.dtype) -> torch.Tensor:
    """Attend by vLLM's own code, so that buffers, strides and types are those of a request. Nothing is stored."""
    import torch
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantMetadata

    impl, device, tokens = layer.impl, layer.kv_cache.device, requests * length
    context = length + 1  # one token is cached before
    whole = torch.full((requests,), context, dtype=torch.int32, device=device)
    starts = torch.arange(requests + 1, dtype=torch.int32, device=device) * length
    on_cpu = {"query_start_loc_cpu": starts.cpu(), "seq_lens_cpu": whole.cpu()}
    metadata = TurboQuantMetadata(
        seq_lens=whole,
        slot_mapping=whole,
        block_table=torch.zeros(requests, context, dtype=torch.int32, device=device),
        query_start_loc=starts,
        num_actual_tokens=tokens,
        max_query_len=length,
        max_seq_len=context,
        is_prefill=length > 1,
        num_decodes=requests if decoded else 0,
        num_decode_tokens=tokens if decoded else 0,
        **{name: value for name, value in on_cpu.items() if name in TurboQuantMetadata.__annotations__},
    )
    query = torch.zeros(tokens, impl.num_heads, impl.head_size, dtype=dtype, device=device)
    key = torch.zeros(tokens, impl.num_kv_heads, impl.head_size, dtype=dtype, device=device)
    output: torch.Tensor = impl.forward(
        layer=layer,
        query=query,
        key=key,
        value=key,
        kv_cache=layer.kv_cache,
        attn_metadata=metadata,
        output=torch.empty_like(query),
    )
    return output


def _rotate(layer: Layer, dtype: torch.dtype) -> None:
    """Rotate few and many keys, for which the kernel is compiled apart."""
    import torch

    impl = layer.impl
    for tokens in (1, -(-MANY // impl.num_kv_heads)):
        key = torch.zeros(tokens, impl.num_kv_heads, impl.head_size, dtype=dtype, device=layer.kv_cache.device)
        if not impl.tq_config.key_fp8 and unrotated(key) is None:
            rotated_keys(key)[1].cpu()


@cache
def _say_once(reason: str) -> None:
    logger.info("TurboQuant decodes by vLLM's own kernel, not by that of vpatch: %s", reason)
