"""TurboQuant's continuation prefill, one tile of the cached tokens at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.turboquant_attn import (
        TurboQuantAttentionImpl,
        TurboQuantMetadata,
        TurboQuantMetadataBuilder,
    )

    Result: TypeAlias = tuple[torch.Tensor, torch.Tensor]
    """Attention's output, (tokens, heads, head size), and its log-sum-exp, (heads, tokens), in float32."""

TILE = 16_384  # tokens; keys and values take 32 MiB in fp16 with two heads of size 256
BLOCK = 128  # tokens; the kernels accept any block size


def in_tiles() -> bool:
    """Return whether attention to some of the keys can return its log-sum-exp: with flash attention on CUDA."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends import turboquant_attn

    return bool(turboquant_attn._HAS_FLASH_ATTN and current_platform.is_cuda())


def all_in_tiles(builder: TurboQuantMetadataBuilder) -> bool:
    """Return whether no layer of a metadata builder needs vLLM's workspace to go on with a prompt.

    UltraQuant's attention inherits from TurboQuant's, and goes on in its own way. Tests of a builder have no layers.
    """
    compilation = getattr(builder.vllm_config, "compilation_config", None)
    layers = getattr(compilation, "static_forward_context", {})
    impls = [layers[name].impl for name in builder.layer_names if name in layers]
    return in_tiles() and all(hasattr(impl, "_limits") for impl in impls)


def continue_in_tiles(
    impl: TurboQuantAttentionImpl,
    query: torch.Tensor,
    key_chunk: torch.Tensor,
    val_chunk: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    cached_len: int,
    Pi: torch.Tensor,  # noqa: N803 - upstream's name
    centroids: torch.Tensor,
) -> torch.Tensor:
    """Attend from a chunk of a prompt to itself, causally, and to all cached tokens of the prompt.

    The last tile is attended together with the chunk. Up to one tile, the arithmetic equals that in one piece, as it is
    from 0.21 on (0.20 rotates in float32). Beyond, results are merged by their log-sum-exp (section 2.2 of
    https://www.arxiv.org/pdf/2501.01005).

    Args:
        impl: the layer's attention.
        query: (chunk, heads, head size), fp16 or bf16.
        key_chunk: (chunk, KV heads, head size), of the query's dtype, as `val_chunk`.
        val_chunk: the values of the chunk.
        kv_cache: (blocks, block size, KV heads, slot bytes), uint8.
        block_table: (1, blocks of a request).
        cached_len: how many tokens before the chunk are cached, at least 1.
        Pi: the rotation of keys, (head size, head size).
        centroids: of the quantized keys.

    Returns:
        (chunk, heads, head size), of the query's dtype.
    """
    import torch

    block_size = kv_cache.shape[1]
    tile = max(1, TILE // block_size) * block_size
    buffers = torch.empty(2, min(tile, cached_len), *key_chunk.shape[1:], dtype=torch.float16, device=query.device)
    room = buffers.shape[1] + len(query)
    last = (cached_len - 1) // tile * tile
    merged: Result | None = None
    for start in range(0, cached_len, tile):
        part = buffers[:, : cached_len - start]
        _dequantise(impl, kv_cache, block_table[:, start // block_size :], centroids, part)
        chunk = (key_chunk, val_chunk) if start == last else (key_chunk[:0], val_chunk[:0])
        result = _attend(impl, query, *_joined(impl, part, Pi, chunk, room), causal=start == last)
        merged = result if merged is None else _merged(merged, result)
        del result  # free it before the next one is made
    assert merged is not None  # noqa: S101 - something is cached
    return merged[0]


def _dequantise(
    impl: TurboQuantAttentionImpl,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    centroids: torch.Tensor,
    part: torch.Tensor,
) -> None:
    """Fill `part`, (2, tokens, KV heads, head size), with keys, still rotated, and values of the first tokens."""
    from vllm.triton_utils import triton
    from vllm.v1.attention.ops.triton_turboquant_decode import _tq_full_dequant_kv, _use_fp8_e4b15

    (keys, values), config = part, impl.tq_config
    tokens, heads, head_size = keys.shape
    _tq_full_dequant_kv[(tokens, heads)](
        KV_cache_ptr=kv_cache,
        Block_table_ptr=block_table,
        Centroids_ptr=centroids,
        K_out_ptr=keys,
        V_out_ptr=values,
        stride_ko_b=0,  # there is one request
        stride_ko_h=keys.stride(1),
        stride_ko_s=keys.stride(0),
        stride_vo_b=0,
        stride_vo_h=values.stride(1),
        stride_vo_s=values.stride(0),
        stride_cache_block=kv_cache.stride(0),
        stride_cache_pos=kv_cache.stride(1),
        stride_cache_head=kv_cache.stride(2),
        stride_bt_b=block_table.stride(0),
        HEAD_DIM=head_size,
        BLOCK_SIZE=kv_cache.shape[1],
        NUM_KV_HEADS=heads,
        MSE_BYTES=impl._mse_bytes,
        KPS=config.key_packed_size,
        VQB=config.effective_value_quant_bits,
        VAL_DATA_BYTES=impl._val_data_bytes,
        MSE_BITS=config.key_mse_bits,
        KEY_FP8=int(config.key_fp8),
        BLOCK_D=triton.next_power_of_2(head_size),
        NORM_CORRECTION=int(config.norm_correction),
        FP8_E4B15=_use_fp8_e4b15(device=kv_cache.device.index or 0),
        num_warps=4,
    )


def _joined(
    impl: TurboQuantAttentionImpl,
    part: torch.Tensor,
    rotation: torch.Tensor,
    chunk: tuple[torch.Tensor, torch.Tensor],
    room: int,
) -> torch.Tensor:
    """Return the cached keys, rotated back, and values, each followed by those of the chunk, in the chunk's dtype.

    There is `room` for so many tokens, used or not: allocations of different sizes would fragment the memory.
    """
    keys, values = part
    if not impl.tq_config.key_fp8:
        keys = keys @ rotation.to(keys.dtype)  # symmetric: its own inverse
    joined = chunk[0].new_empty(2, room, *keys.shape[1:])[:, : len(keys) + len(chunk[0])]
    for whole, cached, new in zip(joined, (keys, values), chunk, strict=True):
        whole[: len(cached)] = cached
        whole[len(cached) :] = new
    return joined


def _attend(
    impl: TurboQuantAttentionImpl, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, causal: bool
) -> Result:
    """Attend to some keys; if `causal`, the last of them belong to the query's tokens."""
    from vllm.v1.attention.backends import turboquant_attn

    version = {} if impl.fa_version is None else {"fa_version": impl.fa_version}
    output, lse = turboquant_attn.flash_attn_varlen_func(
        q=query,
        k=keys,
        v=values,
        cu_seqlens_q=_bounds(query),
        cu_seqlens_k=_bounds(keys),
        max_seqlen_q=len(query),
        max_seqlen_k=len(keys),
        softmax_scale=impl.scale,
        causal=causal,
        return_softmax_lse=True,
        **version,
    )
    return output, lse


def _merged(earlier: Result, later: Result) -> Result:
    """Merge the results of attention to two disjoint sets of keys."""
    import torch
    from vllm.v1.attention.ops.merge_attn_states import merge_attn_states

    output, lse = (torch.empty_like(part) for part in later)
    merge_attn_states(
        output=output,
        prefix_output=earlier[0],
        prefix_lse=earlier[1],
        suffix_output=later[0],
        suffix_lse=later[1],
        output_lse=lse,
    )
    return output, lse


def _bounds(tokens: torch.Tensor) -> torch.Tensor:
    """Return the bounds of the only sequence, made on the device, which avoids waiting for a copy to it."""
    import torch

    return torch.arange(0, 2 * len(tokens), len(tokens), dtype=torch.int32, device=tokens.device)


@dataclass(frozen=True)
class Limits:
    """The longest possible request, in tokens, and the number of concurrent requests."""

    max_model_len: int
    max_num_seqs: int

    @classmethod
    def of(cls, config: VllmConfig) -> Limits:
        """Read the limits from vLLM's configuration; without a model, as in backend tests, the length is one tile."""
        model = config.model_config
        return cls(model.max_model_len if model else TILE, config.scheduler_config.max_num_seqs)


def rehearse(
    impl: TurboQuantAttentionImpl, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> None:
    """Run once, on a cache of one block, what takes most memory: continuations of this many tokens, and a decode.

    vLLM sizes the KV cache by the allocations of a forward pass without a cache. Attention is skipped in that pass, so
    vLLM would count neither a continuation's allocations nor decode's part of the shared workspace.

    Nothing is run for a layer of another format, UltraQuant's, which inherits `forward`.

    Args:
        impl: the layer's attention.
        layer: the layer.
        query: of the longest batch, (tokens, heads * head size).
        key: (tokens, KV heads * head size), as `value`.
        value: the values of the batch.
    """
    import torch
    from vllm.v1.attention.backends.turboquant_attn import _CONTINUATION_DECODE_THRESHOLD, TurboQuantMetadata

    limits: Limits | None = getattr(impl, "_limits", None)
    if limits is None:
        return

    def metadata(requests: int, length: int, context: int) -> TurboQuantMetadata:
        """Describe requests that each continue by `length` tokens to `context` tokens, all stored in the one block."""
        whole = torch.full((requests,), context, dtype=torch.int32, device=query.device)
        return TurboQuantMetadata(
            seq_lens=whole,
            slot_mapping=whole,  # nothing is stored
            block_table=torch.zeros(requests, -(-context // BLOCK), dtype=torch.int32, device=query.device),
            query_start_loc=torch.arange(requests + 1, dtype=torch.int32, device=query.device) * length,
            num_actual_tokens=requests * length,
            max_query_len=length,
            max_seq_len=max(context, limits.max_model_len),  # some releases keep a tensor of this length
            is_prefill=length > 1,
        )

    tokens = len(query)
    queries = query.view(tokens, impl.num_heads, impl.head_size)
    keys, values = (part.view(tokens, impl.num_kv_heads, impl.head_size) for part in (key, value))
    impl._ensure_on_device(layer=layer, device=query.device)
    pi, centroids, pi_t = layer._tq_Pi, layer._tq_centroids, layer._tq_PiT
    slot = impl.tq_config.slot_size_aligned
    cache = torch.zeros(1, BLOCK, impl.num_kv_heads, slot, dtype=torch.uint8, device=query.device)

    mixed = torch.empty_like(queries)  # batches with decodes hold one more tensor of this size
    cached = min(2 * TILE, limits.max_model_len)  # with a third tile the first result is gone
    # Continuations of few tokens use another kernel, which takes more memory for each.
    for length in {tokens, min(tokens, _CONTINUATION_DECODE_THRESHOLD)}:
        impl._prefill_attention(
            query=queries,
            key=keys,
            value=values,
            kv_cache=cache,
            attn_metadata=metadata(1, length, cached + length),
            Pi=pi,
            centroids=centroids,
            PiT=pi_t,
            layer=layer,
        )
    del mixed
    requests = min(tokens, limits.max_num_seqs)
    impl._decode_attention(
        query=queries[:requests],
        kv_cache=cache,
        attn_metadata=metadata(requests, 1, 1),
        Pi=pi,
        centroids=centroids,
        PiT=pi_t,
        layer=layer,
    )
