"""Which calls of TurboQuant's decode attention the kernels of `turboquant_decode` take, and their warm-up.

Every other call goes to vLLM's kernel, and the log says why, once for each reason.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from vllm._vpatch.turboquant_decode import decode_attention
from vllm._vpatch.turboquant_decode_launch import batches_to_compile
from vllm._vpatch.turboquant_decode_supported import no_gpu, supported
from vllm._vpatch.turboquant_decode_switch import turn_off, why_off

if TYPE_CHECKING:
    import torch
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
    reason = why_off() or (None if key_fp8 else _unlike_vllms(Pi, query.shape[2]))
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
    limit = worker.vllm_config.scheduler_config.max_num_seqs
    try:
        with torch.inference_mode():
            for layer in _different(worker.vllm_config.compilation_config.static_forward_context.values()):
                for tokens, shared in _batches(layer.impl, limit):
                    output = _attend(layer, tokens, shared=shared, dtype=worker.vllm_config.model_config.dtype)
                    output.cpu()  # waits, so that errors of the kernels come up here
    except Exception as error:
        turn_off(f"its warm-up failed: {type(error).__name__}: {error}")
        logger.warning("TurboQuant decodes by vLLM's own kernels. Those of vpatch failed on this GPU.", exc_info=error)


def _different(layers: Any) -> Iterator[Any]:
    """Yield one TurboQuant layer for each set of what the kernels are compiled for."""
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionImpl

    seen = set()
    for layer in layers:
        impl, stored = getattr(layer, "impl", None), getattr(layer, "kv_cache", None)
        if not isinstance(impl, TurboQuantAttentionImpl) or stored is None or not stored.numel():
            continue
        heads = (impl.num_heads, impl.num_kv_heads, impl.head_size, impl.kv_cache_dtype)
        key = (*heads, *stored.shape[1:], *stored.stride(), stored.data_ptr() % 16)
        if key not in seen:
            seen.add(key)
            yield layer


def _batches(impl: Any, max_num_seqs: int) -> Iterator[tuple[int, bool]]:
    """Yield tokens of a batch, and whether they are of one request, so that all launch parameters are met."""
    group = impl.num_heads // impl.num_kv_heads
    for tokens in batches_to_compile(max_num_seqs, impl.num_kv_heads, impl.head_size, group):
        yield tokens, False
    for windows in batches_to_compile(LONGEST_CHUNK // SHARED, impl.num_kv_heads, impl.head_size, group * SHARED):
        yield windows * SHARED, True


def _attend(layer: Any, tokens: int, *, shared: bool, dtype: torch.dtype) -> torch.Tensor:
    """Attend by vLLM's own code, so that buffers, strides and types are those of a request. Nothing is stored."""
    import torch
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantMetadata

    impl = layer.impl
    device = layer.kv_cache.device
    requests, length = (1, tokens) if shared else (tokens, 1)
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
        is_prefill=shared,
        num_decodes=0 if shared else requests,
        num_decode_tokens=0 if shared else tokens,
        **{name: value for name, value in on_cpu.items() if name in TurboQuantMetadata.__annotations__},
    )
    query = torch.zeros(tokens, impl.num_heads, impl.head_size, dtype=dtype, device=device)
    key = torch.zeros(tokens, impl.num_kv_heads, impl.head_size, dtype=dtype, device=device)
    output: torch.Tensor = impl.forward(layer, query, key, key, layer.kv_cache, metadata, torch.empty_like(query))
    return output


def _unlike_vllms(rotation: torch.Tensor, size: int) -> str | None:
    """Return that keys were not rotated as the kernels rotate queries; None if they were."""
    from vllm.v1.attention.backends.turboquant_attn import _build_hadamard

    # vLLM keeps one matrix for each name of a device: its layers write "cuda:0", its tests "cuda".
    names = (str(rotation.device), rotation.device.type)
    if size & (size - 1) == 0 and any(rotation is _build_hadamard(size, name) for name in names):
        return None
    return "keys that are rotated by another matrix than vLLM's"


@cache
def _say_once(reason: str) -> None:
    logger.info("TurboQuant decodes by vLLM's own kernel, not by that of vpatch: %s", reason)
