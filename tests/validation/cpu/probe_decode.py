"""How far TurboQuant's decode kernels, vLLM's and those of `turboquant-decode`, are from float64."""

from __future__ import annotations

import json
import math
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from tests.paths import ROOT
from tests.validation.cpu.decode_cases import Case, attention, codebook, filled, hadamard

COMPANIONS = ROOT / "patches/vpatch_overlays/companions"


def companion(name: str) -> Any:
    """Import a companion of the project as a module of the vLLM at hand, which may lack it."""
    if "vllm._vpatch" not in sys.modules:
        package = ModuleType("vllm._vpatch")
        package.__path__ = [str(COMPANIONS)]
        sys.modules["vllm._vpatch"] = package
    return import_module(f"vllm._vpatch.{name}")


def mend_bfloat16() -> None:
    """Let the interpreter multiply bf16 numbers in `tl.dot`, not their bits, and round to bf16, not truncate."""
    import numpy as np
    from triton import language as tl
    from triton.runtime import interpreter

    def numbers(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        wide = handle.data.view(np.uint16).astype(np.uint32) << 16
        return interpreter.TensorHandle(wide.view(np.float32), tl.float32)

    dot = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *more: Any) -> Any:
        return dot(self, numbers(a), numbers(b), *more)

    truncate = interpreter.InterpreterBuilder.create_fp_trunc

    def create_fp_trunc(self: Any, source: Any, kind: Any) -> Any:
        if kind.scalar != tl.bfloat16 or source.dtype.scalar != tl.float32:
            return truncate(self, source, kind)
        bits = source.data.view(np.uint32)
        rounded = bits + 0x7FFF + (bits >> 16 & 1)  # to the nearest, and half to even
        return interpreter.TensorHandle((rounded >> 16).astype(np.uint16), tl.bfloat16)

    interpreter.InterpreterBuilder.create_dot = create_dot
    interpreter.InterpreterBuilder.create_fp_trunc = create_fp_trunc


def queries(case: Case) -> Any:
    """Return queries that attend far from evenly."""
    import torch

    torch.manual_seed(case.window)
    shape = (case.tokens, case.kv_heads * case.group, case.size)
    return (torch.randn(shape) * 2).to(getattr(torch, case.dtype))


def seen(case: Case) -> Any:
    """Return how many cached tokens each token sees: the last of a window all of them."""
    import torch

    window = torch.arange(case.window) - case.window + 1
    return (torch.tensor(case.lengths)[:, None] + window).clamp(min=0).flatten()[: case.tokens].int()


def errors(case: Case) -> dict[str, Any]:
    """Return the relative errors of both kernels, and whether rows that see nothing are 0."""
    import torch
    from vllm.v1.attention.ops.triton_turboquant_decode import triton_turboquant_decode_attention

    decode = companion("turboquant_decode")
    split_count = companion("turboquant_decode_launch").split_count
    decode._in_e4b15 = lambda _device: case.e4b15
    cache, table = filled(case.stored)
    decode.split_count = (lambda *_: case.splits) if case.splits else split_count
    query, lengths = queries(case), seen(case)
    key_bits, value_bits = case.bits
    fp8, scale = key_bits == 8, case.size**-0.5
    mse_bits = 0 if fp8 else key_bits
    given = lengths if case.each else torch.tensor(case.lengths, dtype=torch.int32)
    reason = companion("turboquant_decode_supported").supported(
        query, cache, table, given, mse_bits, case.key_bytes, value_bits, key_fp8=fp8, window=case.window
    )
    if reason:
        return {"reason": reason}
    numbers = codebook(case)
    found = decode.decode_attention(
        query,
        cache,
        table,
        given,
        numbers,
        scale,
        mse_bits,
        value_bits,
        key_fp8=fp8,
        norm_correction=not fp8,
        window=case.window,
    )
    exact = attention(case, query, scale)
    blind = exact.abs().sum((1, 2)) == 0
    result = {"ours": error(found, exact), "zero": bool((found[blind] == 0).all())}
    if not case.stock:
        return result
    # vLLM's kernel takes a window as so many requests, and divides by 0 if one has no tokens.
    rotation = hadamard(case.size).float()
    stock = triton_turboquant_decode_attention(
        query[~blind],
        cache,
        table.repeat_interleave(case.window, 0)[: case.tokens][~blind].clamp(max=len(cache) - 1),
        lengths[~blind],
        rotation,
        numbers,
        scale,
        mse_bits,
        case.key_bytes,
        value_bits,
        key_fp8=fp8,
        norm_correction=not fp8,
        PiT=rotation,
        max_num_kv_splits=3,
    )
    return result | {"stock": error(stock, exact[~blind])}


def error(found: Any, exact: Any) -> float:
    """Return the norm of the difference, relative to the exact result unless that is 0; 9 if it is not finite."""
    difference = float((found.double() - exact).norm() / (exact.norm() or 1.0))
    return difference if math.isfinite(difference) else 9.0


def main(_home: str, cases: str) -> list[dict[str, Any]]:
    import torch

    torch.cuda.get_device_capability = lambda _device=None: (9, 0)
    mend_bfloat16()
    return [errors(Case(**case | {"lengths": tuple(case["lengths"])})) for case in json.loads(cases)]
