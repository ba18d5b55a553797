"""TurboQuant's decode attention on tensor cores, one program for all query heads of a KV head.

vLLM's kernel decodes the cache once for each query head, without tensor cores. This one decodes it once for each KV
head; see `turboquant_decode_kernels`. Results differ from vLLM's by rounding.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from vllm._vpatch.turboquant_decode_codes import key_texts, value_texts
from vllm._vpatch.turboquant_decode_kernels import combine_kernel, split_kernel
from vllm._vpatch.turboquant_decode_launch import COMBINED, MOST_SPLITS, SHORTEST, Launch, choose, split_count
from vllm.triton_utils import triton

if TYPE_CHECKING:
    import torch

PRESETS = ((8, 4), (4, 4), (3, 4), (3, 3))
"""Bits of keys and values: of k8v4, 4bit_nc, k3v4_nc and 3bit_nc."""

HEAD_SIZES = (64, 128, 256)
GROUPS = range(1, 17)  # query heads of a KV head
WINDOWS = range(1, 9)  # query tokens of a request
COMBINE_OPTIONS = {"num_warps": 4}
PAGE = 16  # tokens; pages are multiples of it
MOST_REQUESTS = 65_535  # of a CUDA grid's third dimension


def supported(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    mse_bits: int,
    key_packed_size: int,
    value_quant_bits: int,
    *,
    key_fp8: bool = False,
    window: int = 1,
) -> str | None:
    """Return why `decode_attention` cannot take this call, or None if it can.

    Reads shapes, strides and types only, so that it works while a CUDA graph is captured. For the arguments see
    `decode_attention`.
    """
    bits = 8 if key_fp8 else mse_bits
    size, page, slot = query.shape[2], kv_cache.shape[1], kv_cache.shape[3]
    packed = size * bits // 8 + (0 if key_fp8 else 2)
    if (bits, value_quant_bits) not in PRESETS:
        return f"keys of {bits} and values of {value_quant_bits} bits"
    if size not in HEAD_SIZES:
        return f"head size {size}"
    if page % PAGE:
        return f"pages of {page} tokens"
    if key_packed_size != packed or slot < packed + size * value_quant_bits // 8 + 4:
        return f"keys of {key_packed_size} bytes in slots of {slot}"
    return (
        _unsupported_batch(query.shape[0], query.shape[1], kv_cache.shape[2], len(seq_lens), window)
        or _unsupported_memory(query, kv_cache, block_table, seq_lens)
        or _unsupported_device(query.device)
    )


def _unsupported_batch(tokens: int, heads: int, kv_heads: int, requests: int, window: int) -> str | None:
    if heads % kv_heads or heads // kv_heads not in GROUPS:
        return f"{heads} query heads on {kv_heads} KV heads"
    if window not in WINDOWS or requests * window != tokens:
        return f"{tokens} tokens of {requests} requests in windows of {window}"
    if not 0 < requests <= MOST_REQUESTS:
        return f"{requests} requests"
    return None


def _unsupported_memory(
    query: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor
) -> str | None:
    import torch

    odd = any(stride % 2 for stride in (*kv_cache.stride()[:3], kv_cache.storage_offset()))
    if query.dtype not in (torch.float16, torch.bfloat16) or query.stride(2) != 1:
        return f"queries of type {query.dtype} with strides {query.stride()}"
    if kv_cache.dtype != torch.uint8 or kv_cache.stride(3) != 1 or odd:
        return f"a cache of type {kv_cache.dtype} with strides {kv_cache.stride()}"
    if block_table.stride(1) != 1 or block_table.dtype != torch.int32 or not block_table.shape[1]:
        return f"a block table of type {block_table.dtype} with strides {block_table.stride()}"
    if seq_lens.stride(0) != 1 or seq_lens.dtype not in (torch.int32, torch.int64):
        return f"lengths of type {seq_lens.dtype} with strides {seq_lens.stride()}"
    return None


@cache
def _unsupported_device(device: torch.device) -> str | None:
    import torch

    if _interpreted():
        return None
    if device.type != "cuda" or torch.version.hip:
        return f"device {device}, which is not of NVIDIA"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "a GPU before Ampere"
    return None


def scratch_size(
    heads: int,
    kv_heads: int,
    head_size: int,
    *,
    max_num_seqs: int,
    max_model_len: int,
    processors: int,
    window: int = 1,
) -> int:
    """Return how many float32 numbers `decode_attention` needs at most as `scratch`, for any number of requests.

    Args:
        heads: query heads of this rank.
        kv_heads: KV heads of this rank.
        head_size: 64, 128 or 256.
        max_num_seqs: the most requests of a batch.
        max_model_len: the most tokens that the block table has room for.
        processors: multiprocessors of the GPU.
        window: query tokens of a request.
    """
    rows = heads // kv_heads * window
    most: int = max(
        requests
        * split_count(choose(requests, kv_heads, head_size, rows), requests, kv_heads, max_model_len, processors)
        for requests in range(1, max_num_seqs + 1)
    )
    return most * window * heads * (head_size + 1)


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
    """Attend from the last tokens of requests to their cached tokens; the caller has asked `supported` before.

    The keys are those that vLLM rotated with its Hadamard matrix and quantized by its codebook.

    Args:
        query: (requests * window, heads, head size), fp16 or bf16. Tokens of a request follow one another.
        kv_cache: (pages, page size, KV heads, slot bytes), uint8, with any even strides.
        block_table: (requests, pages of a request), int32. The rows may be one and the same. Its width, times the page
            size, bounds the number of splits.
        seq_lens: (requests,): cached tokens, those of the window included. A length of 0 gives 0.
        centroids: the codebook, float32; not read for keys in fp8.
        scale: of the scores.
        mse_bits: bits of a key's code; not read for keys in fp8.
        value_quant_bits: bits of a value's code.
        key_fp8: whether keys are stored in fp8, not rotated.
        norm_correction: whether a key's numbers are divided by their norm.
        output_buf: where the output goes, if its type and size fit.
        scratch: where partial results go, if there are enough contiguous float32 numbers; see `scratch_size`.
        window: query tokens of a request. Token t of them sees all cached tokens but the last `window - 1 - t`.
        inline_ptx: whether codes are decoded by inline PTX; by default, unless Triton interprets its kernels.

    Returns:
        (requests * window, heads, head size), of the query's dtype.
    """
    tokens, heads, size = query.shape
    page, kv_heads = kv_cache.shape[1], kv_cache.shape[2]
    requests, group = tokens // window, heads // kv_heads
    key_bits = 8 if key_fp8 else mse_bits
    launch = choose(requests, kv_heads, size, group * window)
    processors = _processors(query.device)
    splits = split_count(launch, requests, kv_heads, block_table.shape[1] * page, processors)
    partial, logs = _room(query, scratch, splits)
    output = _output(query, output_buf)
    if inline_ptx is None:
        inline_ptx = not _interpreted()
    shape = constants(launch, kv_heads, group, window, size, page, key_bits, value_quant_bits)
    split_kernel[(splits, kv_heads * shape["ROW_BLOCKS"], requests)](
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
        splits,
        **combine_constants(launch, heads, window, size, value_quant_bits),
        **COMBINE_OPTIONS,
    )
    return output


def constants(
    launch: Launch, kv_heads: int, group: int, window: int, size: int, page: int, key_bits: int, value_bits: int
) -> dict[str, int]:
    """Return what the first kernel is compiled for, by the shape of a layer and of a batch."""
    return {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "WINDOW": window,
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


def combine_constants(launch: Launch, heads: int, window: int, size: int, value_bits: int) -> dict[str, int]:
    """Return what the second kernel is compiled for."""
    return {
        "WINDOW": window,
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
    """Return the inline PTX of a preset and head size, for vLLM's codebook, which this computes as vLLM does."""
    from vllm.model_executor.layers.quantization.turboquant.centroids import get_centroids

    if not inline_ptx:
        return {"KEY_TEXTS": None, "VALUE_TEXTS": None}
    codebook = () if key_bits == 8 else get_centroids(size, key_bits).tolist()
    return {"KEY_TEXTS": key_texts(key_bits, codebook) or None, "VALUE_TEXTS": value_texts(value_bits)}


def _room(query: torch.Tensor, scratch: torch.Tensor | None, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return room for partial results and for the logarithms of their weights."""
    import torch

    rows, size = query.shape[0] * query.shape[1] * splits, query.shape[2]
    needed = rows * (size + 1)
    fits = scratch is not None and scratch.dtype == torch.float32 and scratch.is_contiguous()
    if scratch is None or not fits or scratch.numel() < needed:
        scratch = torch.empty(needed, dtype=torch.float32, device=query.device)
    flat = scratch.view(-1)
    return flat[: rows * size], flat[rows * size : needed]


def _output(query: torch.Tensor, buffer: torch.Tensor | None) -> torch.Tensor:
    import torch

    tokens, heads, size = query.shape
    if buffer is not None and buffer.dtype == query.dtype and buffer.shape[0] >= tokens:
        return buffer[:tokens, :heads, :size]
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)


@cache
def _processors(device: torch.device) -> int:
    import torch

    return 132 if _interpreted() else torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _in_e4b15(device: int) -> bool:
    """Return whether vLLM stores fp8 keys in e4b15 on this device: before Ada there is no conversion to e4m3."""
    from vllm.v1.attention.ops.triton_turboquant_decode import _use_fp8_e4b15

    return bool(_use_fp8_e4b15(device))


def _interpreted() -> Any:
    return triton.knobs.runtime.interpret
