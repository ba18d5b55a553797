"""Which calls the kernels of `turboquant_decode` cover, decided before a launch from shapes, strides and types."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from vllm._vpatch.turboquant_decode_launch import interpreted
from vllm._vpatch.turboquant_decode_switch import why_off

if TYPE_CHECKING:
    from typing import Protocol

    import torch
    from vllm.config import VllmConfig
    from vllm.model_executor.layers.quantization.turboquant.config import TurboQuantConfig
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionImpl

    class Layer(Protocol):
        """An attention layer, which vLLM has in another module in each few releases."""

        impl: TurboQuantAttentionImpl
        kv_cache: torch.Tensor


PRESETS = ((8, 4), (4, 4), (3, 4), (3, 3))
"""Bits of keys and values: of k8v4, 4bit_nc, k3v4_nc and 3bit_nc."""

HEAD_SIZES = (64, 128, 256)
GROUPS = range(1, 17)  # query heads of a KV head
WINDOWS = range(1, 10)  # query tokens that share a row of the block table: one, and up to eight drafts
PAGE = 16  # tokens; pages are multiples of it
MOST_WINDOWS = 65_535  # of a CUDA grid's third dimension


def layers_of(config: VllmConfig) -> Iterator[Layer]:
    """Yield the engine's TurboQuant attention layers, once they are made.

    vLLM's own tests of the metadata builder give it a configuration without any.
    """
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionImpl

    compilation = getattr(config, "compilation_config", None)
    if compilation is None:
        return
    for layer in compilation.static_forward_context.values():
        if isinstance(getattr(layer, "impl", None), TurboQuantAttentionImpl):
            yield layer


def need_of(impl: Any) -> Any:
    """Return what a layer needs of decode's buffers, or None if vLLM's kernel attends to it.

    None, too, without the overlay's part `buffers`, and for a subclass of TurboQuant's attention that has a format of
    its own, and so another `__init__`: UltraQuant's.
    """
    return getattr(impl, "_decode_need", None)


def bits_of(config: TurboQuantConfig) -> tuple[int, int]:
    """Return the bits of a key's and of a value's code; 8 is fp8."""
    return 8 if config.key_fp8 else config.key_mse_bits, config.effective_value_quant_bits


def covered(heads: int, kv_heads: int, head_size: int) -> bool:
    """Return whether the kernels take layers of this shape, here and now."""
    grouped = heads % kv_heads == 0 and heads // kv_heads in GROUPS
    return head_size in HEAD_SIZES and grouped and why_off() is None and no_gpu() is None


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
    `turboquant_decode.decode_attention`.
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
        _unsupported_batch(query.shape[:2], kv_cache.shape[2], len(block_table), len(seq_lens), window)
        or _unsupported_memory(query, kv_cache, block_table, seq_lens)
        or no_gpu()
    )


def _unsupported_batch(query: tuple[int, ...], kv_heads: int, table_rows: int, lengths: int, window: int) -> str | None:
    tokens, heads = query
    if heads % kv_heads or heads // kv_heads not in GROUPS:
        return f"{heads} query heads on {kv_heads} KV heads"
    if window not in WINDOWS or tokens not in (lengths, lengths * window) or table_rows < -(-tokens // window):
        return f"{tokens} tokens in windows of {window}, with {lengths} lengths and {table_rows} rows of pages"
    if not 0 < tokens <= MOST_WINDOWS * window:
        return f"{tokens} tokens"
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
def no_gpu() -> str | None:
    """Return why the kernels cannot run on the GPU of this process, or None if they can."""
    import torch

    if interpreted():
        return None
    if torch.version.hip or not torch.cuda.is_available():
        return "no GPU of NVIDIA"
    if torch.cuda.get_device_capability() < (8, 0):
        return "a GPU before Ampere"
    return None


def unlike_vllms(rotation: torch.Tensor, size: int) -> str | None:
    """Return that keys are rotated by another matrix than the kernels have; None if they are not."""
    from vllm.v1.attention.backends.turboquant_attn import _build_hadamard

    # vLLM keeps one matrix for each name of a device: its layers write "cuda:0", its tests "cuda".
    names = (str(rotation.device), rotation.device.type)
    if size & (size - 1) == 0 and any(rotation is _build_hadamard(d=size, device_str=name) for name in names):
        return None
    return "keys that are rotated by another matrix than vLLM's"
