"""Calls of the kernels that are compared: ours, vLLM's, and flash attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from benchmarks.decode.cases import Preset
from benchmarks.decode.formats import codebook, hadamard

OURS = "vllm._vpatch.turboquant_decode"
LAUNCHER = "vllm.v1.attention.ops.triton_turboquant_decode"
SWITCH = "decode_if_supported"  # the function that the patched launcher asks first
STOCK_SPLITS = 32  # vLLM's own number of splits in CUDA graphs


class StillDispatched(Exception):
    """vLLM's launcher does not reach its own kernel although the overlay is switched off."""


def ours() -> Any:
    """Return the module of the kernels."""
    return import_module(OURS)


@contextmanager
def switched_off() -> Iterator[Any]:
    """Yield vLLM's launcher module, with the overlay switched off inside the block."""
    module: Any = import_module(LAUNCHER)
    if not hasattr(module, SWITCH):
        yield module
        return
    kept = getattr(module, SWITCH)
    setattr(module, SWITCH, lambda *_, **__: None)
    try:
        yield module
    finally:
        setattr(module, SWITCH, kept)


def stock(
    query: Any, cache: Any, table: Any, lengths: Any, preset: Preset, *, correct: bool = True, **buffers: Any
) -> Any:
    """Run vLLM's kernels. Each row of the query is a request of its own, with its row of the block table."""
    size, device = query.shape[-1], query.device.type
    rotation = _rotation(size, device)
    with switched_off() as module:
        return module.triton_turboquant_decode_attention(
            query,
            cache,
            table,
            lengths,
            rotation,
            codebook(size, preset.key_bits, device),
            size**-0.5,
            preset.mse_bits,
            preset.key_bytes(size),
            preset.value_bits,
            key_fp8=preset.fp8,
            norm_correction=correct and not preset.fp8,
            PiT=rotation,  # the matrix is symmetric
            max_num_kv_splits=STOCK_SPLITS,
            **buffers,
        )


_rotations: dict[tuple[int, str], Any] = {}


def _rotation(size: int, device: str) -> Any:
    """Return the rotation in float32, made once: a conversion in a CUDA graph would be timed with the kernels."""
    if (size, device) not in _rotations:
        _rotations[size, device] = hadamard(size, device).float()
    return _rotations[size, device]


class _Reached(Exception):
    pass


class _Reporting:
    """In place of vLLM's kernel: reports a launch, and launches nothing."""

    def __getitem__(self, _grid: Any) -> Any:
        raise _Reached


def check_stock(device: str) -> None:
    """Check that `stock` runs vLLM's kernel.

    Raises:
        StillDispatched: it does not.
    """
    if not _reaches_stock(stock, device):
        raise StillDispatched(f"{LAUNCHER} does not reach vLLM's kernel with its `{SWITCH}` switched off")


def dispatched(device: str) -> bool | str:
    """Return whether vLLM's launcher uses our kernels, as it does where the overlay is applied and turned on.

    A text says why that is not known.
    """
    try:
        return not _reaches_stock(_launched, device)
    except Exception as error:  # the kernels can be measured without vLLM's launcher
        return f"{type(error).__name__}: {error}"[:300]


def _reaches_stock(attend: Callable[..., Any], device: str) -> bool:
    """Return whether a function launches vLLM's kernel for a small batch."""
    import torch

    preset = Preset(4, 4)
    query = torch.zeros(1, 4, 128, dtype=torch.bfloat16, device=device)
    cache = torch.zeros(1, 16, 1, preset.slot(128), dtype=torch.uint8, device=device)
    table, lengths = (torch.full(shape, at, dtype=torch.int32, device=device) for shape, at in (((1, 1), 0), ((1,), 1)))
    module: Any = import_module(LAUNCHER)
    kept = module._tq_decode_stage1
    module._tq_decode_stage1 = _Reporting()
    try:
        attend(query, cache, table, lengths, preset)
    except _Reached:
        return True
    finally:
        module._tq_decode_stage1 = kept
    return False


def _launched(query: Any, cache: Any, table: Any, lengths: Any, preset: Preset) -> Any:
    """Attend by vLLM's launcher as an engine calls it: with vLLM's own rotation, which the overlay asks for."""
    from vllm.v1.attention.backends.turboquant_attn import _build_hadamard

    module: Any = import_module(LAUNCHER)
    size = query.shape[-1]
    rotation, numbers = _build_hadamard(size, str(query.device)), codebook(size, preset.key_bits, query.device.type)
    bits, key_bytes = (preset.mse_bits, preset.value_bits), preset.key_bytes(size)
    return module.triton_turboquant_decode_attention(
        query, cache, table, lengths, rotation, numbers, size**-0.5, bits[0], key_bytes, bits[1], PiT=rotation
    )


def decode(
    query: Any, cache: Any, table: Any, lengths: Any, preset: Preset, *, correct: bool = True, **options: Any
) -> Any:
    """Run our kernels. `lengths` has how many cached tokens each token, or the last one of each window, sees."""
    size = query.shape[-1]
    return ours().decode_attention(
        query,
        cache,
        table,
        lengths,
        codebook(size, preset.key_bits, query.device.type),
        size**-0.5,
        preset.mse_bits,
        preset.value_bits,
        key_fp8=preset.fp8,
        norm_correction=correct and not preset.fp8,
        **options,
    )


def unsupported(query: Any, cache: Any, table: Any, lengths: Any, preset: Preset, window: int) -> str | None:
    """Return why our kernels refuse a call, or None."""
    size = query.shape[-1]
    reason: str | None = import_module(f"{OURS}_supported").supported(
        query,
        cache,
        table,
        lengths,
        preset.mse_bits,
        preset.key_bytes(size),
        preset.value_bits,
        key_fp8=preset.fp8,
        window=window,
    )
    return reason


def flash_versions() -> tuple[list[int], str]:
    """Return the versions of flash attention to try, the best one first; without any, the second item says why."""
    import torch

    try:
        from vllm.vllm_flash_attn.flash_attn_interface import is_fa_version_supported
    except (ImportError, OSError) as error:
        return [], f"it cannot be imported: {error}"
    wanted = [3, 2] if torch.cuda.get_device_capability()[0] == 9 else [2]
    found = [version for version in wanted if is_fa_version_supported(version)]
    return found, "" if found else "this vLLM supports no version of it on this GPU"


def flash(version: int) -> Callable[..., Any]:
    """Return a version of flash attention, as a function of query, keys, values, table, lengths, starts and limits."""
    from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func

    def attend(
        query: Any, keys: Any, values: Any, table: Any, lengths: Any, starts: Any, window: int, context: int, out: Any
    ) -> Any:
        return flash_attn_varlen_func(
            q=query,
            k=keys,
            v=values,
            max_seqlen_q=window,
            cu_seqlens_q=starts,
            max_seqlen_k=context,
            seqused_k=lengths,
            softmax_scale=query.shape[-1] ** -0.5,
            causal=True,
            block_table=table,
            out=out,
            fa_version=version,
        )

    return attend
