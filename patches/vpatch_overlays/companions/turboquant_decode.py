"""TurboQuant's decode attention on tensor cores, one program for all query heads of a KV head.

vLLM's kernel decodes the cache once for each query head, without tensor cores. This one decodes it once for each KV
head; see `turboquant_decode_kernels`. Results differ from vLLM's by rounding.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from vllm._vpatch.turboquant_decode_codes import key_texts, value_texts
from vllm._vpatch.turboquant_decode_kernels import combine_kernel, split_kernel
from vllm._vpatch.turboquant_decode_launch import (
    COMBINED,
    MOST_SPLITS,
    SHORTEST,
    Launch,
    choose,
    interpreted,
    multiprocessors,
    split_count,
)

if TYPE_CHECKING:
    import torch

COMBINE_OPTIONS = {"num_warps": 4}


def decode_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    centroids: torch.Tensor,
    scale: float,
    mse_bits: int,
    value_quant_bits: int,
    *,
    key_fp8: bool = False,
    norm_correction: bool = False,
    output_buf: torch.Tensor | None = None,
    scratch: torch.Tensor | None = None,
    window: int = 1,
    inline_ptx: bool | None = None,
) -> torch.Tensor:
    """Attend from tokens to the cached tokens before them, where `turboquant_decode_supported` has nothing against it.

    The keys are those that vLLM rotated with its Hadamard matrix and quantized by its codebook.

    Args:
        query: (tokens, heads, head size), fp16 or bf16.
        kv_cache: (pages, page size, KV heads, slot bytes), uint8, with any even strides.
        block_table: (at least tokens / window, pages of a request), int32: its row w is that of tokens w * window and
            on. The rows may be one and the same. Its width, times the page size, bounds the number of splits.
        seq_lens: how many cached tokens are seen, by each token, (tokens,), itself included; or by the last token of
            each window, (tokens / window,), where a token before it sees one less. A length of 0 gives 0.
        centroids: the codebook, float32; not read for keys in fp8.
        scale: of the scores.
        mse_bits: bits of a key's code; not read for keys in fp8.
        value_quant_bits: bits of a value's code.
        key_fp8: whether keys are stored in fp8, not rotated.
        norm_correction: whether a key's numbers are divided by their norm.
        output_buf: where the output goes, if its type and size fit.
        scratch: contiguous float32 numbers where partial results go: head size + 1 of them for each token, head and
            split. There are as many splits as it has room for.
        window: query tokens that share a row of the block table, so that the cache is read once for all of them. The
            last window may have fewer tokens.
        inline_ptx: whether codes are decoded by inline PTX; by default, unless Triton interprets its kernels.

    Returns:
        (tokens, heads, head size), of the query's dtype.
    """
    tokens, heads, size = query.shape
    page, kv_heads = kv_cache.shape[1], kv_cache.shape[2]
    windows, group = -(-tokens // window), heads // kv_heads
    key_bits = 8 if key_fp8 else mse_bits
    launch = choose(windows, kv_heads, size, group * window, (key_bits, value_quant_bits))
    wanted = split_count(launch, windows, kv_heads, block_table.shape[1] * page, multiprocessors(query.device))
    splits, partial, logs = _room(query, scratch, wanted)
    output = _output(query, output_buf)
    if inline_ptx is None:
        inline_ptx = not interpreted()
    each = window > 1 and len(seq_lens) == tokens
    shape = constants(launch, kv_heads, group, window, size, page, key_bits, value_quant_bits, each=each)
    split_kernel[(splits, kv_heads * shape["ROW_BLOCKS"], windows)](
        query,
        kv_cache,
        block_table,
        seq_lens,
        centroids,
        partial,
        logs,
        query.stride(0),
        query.stride(1),
        block_table.stride(0),
        scale,
        tokens,
        splits,
        PAGE_BYTES=kv_cache.stride(0),
        TOKEN_BYTES=kv_cache.stride(1),
        HEAD_BYTES=kv_cache.stride(2),
        E4B15=key_fp8 and _in_e4b15(query.device.index or 0),
        **shape,
        CORRECT=bool(norm_correction),
        **texts(key_bits, value_quant_bits, size, inline_ptx=inline_ptx),
        PREFETCH=launch.prefetch and inline_ptx,
        **options(launch),
    )
    combine_kernel[(tokens, heads)](
        partial,
        logs,
        seq_lens,
        output,
        output.stride(0),
        output.stride(1),
        tokens,
        splits,
        **combine_constants(launch, heads, window, size, value_quant_bits, each=each),
        **COMBINE_OPTIONS,
    )
    return output


def constants(
    launch: Launch,
    kv_heads: int,
    group: int,
    window: int,
    size: int,
    page: int,
    key_bits: int,
    value_bits: int,
    *,
    each: bool,
) -> dict[str, int]:
    """Return what the first kernel is compiled for, by the shape of a layer and of a batch."""
    return {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "WINDOW": window,
        "SPAN": 1 << (window - 1).bit_length(),
        "EACH": each,
        "SIZE": size,
        "PAGE": page,
        # A tile is read in pieces that lie in one page each, however pages and tiles divide one another.
        "PIECE": min(launch.tile, page & -page),
        "KEY_BITS": key_bits,
        "VALUE_BITS": value_bits,
        "ROWS": launch.rows,
        "ROW_BLOCKS": -(-group * window // launch.rows),
        "TILE": launch.tile,
        "SHORTEST": SHORTEST,
    }


def combine_constants(
    launch: Launch, heads: int, window: int, size: int, value_bits: int, *, each: bool
) -> dict[str, int]:
    """Return what the second kernel is compiled for."""
    return {
        "WINDOW": window,
        "SPAN": 1 << (window - 1).bit_length(),
        "EACH": each,
        "HEADS": heads,
        "SIZE": size,
        "PARTS": 4 if value_bits == 4 else 8,
        "SPLITS": MOST_SPLITS,
        "TILE": launch.tile,
        "SHORTEST": SHORTEST,
        "BLOCK": COMBINED,
    }


def options(launch: Launch) -> dict[str, int]:
    """Return the compiler's options for the first kernel."""
    registers = {} if launch.registers is None else {"maxnreg": launch.registers}
    return {"num_warps": launch.warps, "num_stages": 1, **registers}


@cache
def texts(key_bits: int, value_bits: int, size: int, *, inline_ptx: bool) -> dict[str, tuple[str, ...] | None]:
    """Return the inline PTX of a preset and head size, for vLLM's codebook.

    It is computed anew: in vLLM 0.20, the tensor that `get_centroids` keeps is also a buffer of the layers, which
    `--load-format dummy` fills with random numbers.
    """
    from vllm.model_executor.layers.quantization.turboquant.centroids import solve_lloyd_max

    if not inline_ptx:
        return {"KEY_TEXTS": None, "VALUE_TEXTS": None}
    codebook = () if key_bits == 8 else solve_lloyd_max(d=size, bits=key_bits)[0].tolist()
    return {"KEY_TEXTS": key_texts(key_bits, codebook) or None, "VALUE_TEXTS": value_texts(value_bits)}


def _room(query: torch.Tensor, scratch: torch.Tensor | None, wanted: int) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Return the number of splits, room for their results, and for the logarithms of their weights."""
    import torch

    rows, size = query.shape[0] * query.shape[1], query.shape[2]
    usable = scratch is not None and scratch.dtype == torch.float32 and scratch.is_contiguous()
    fitting = scratch.numel() // (rows * (size + 1)) if scratch is not None and usable else 0
    if scratch is None or not fitting:
        fitting, scratch = wanted, torch.empty(rows * wanted * (size + 1), dtype=torch.float32, device=query.device)
    splits = min(wanted, fitting)
    flat, results = scratch.view(-1), rows * splits * size
    return splits, flat[:results], flat[results : results + rows * splits]


def _output(query: torch.Tensor, buffer: torch.Tensor | None) -> torch.Tensor:
    import torch

    tokens, heads, size = query.shape
    if buffer is not None and buffer.dtype == query.dtype and buffer.shape[0] >= tokens:
        return buffer[:tokens, :heads, :size]
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)


@cache
def _in_e4b15(device: int) -> bool:
    """Return whether vLLM stores fp8 keys in e4b15 on this device: before Ada there is no conversion to e4m3."""
    from vllm.v1.attention.ops.triton_turboquant_decode import _use_fp8_e4b15

    return bool(_use_fp8_e4b15(device=device))
