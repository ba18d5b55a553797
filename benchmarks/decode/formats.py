"""TurboQuant's cache: written by vLLM's own kernel, and read back in float64 without any kernel."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from benchmarks.decode.cases import PRESETS, Numeric, Preset
from tests.validation.cpu.decode_cases import codes, from_fp8


@cache
def hadamard(size: int, device: str) -> Any:
    """Return the orthonormal Hadamard matrix, in float64."""
    import torch

    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (matrix / math.sqrt(size)).to(device)


@cache
def codebook(size: int, key_bits: int, device: str) -> Any:
    """Return vLLM's codebook for keys; for fp8, one that no kernel reads."""
    import torch
    from vllm.model_executor.layers.quantization.turboquant.centroids import get_centroids

    return get_centroids(size, 4 if key_bits == 8 else key_bits).to(device, torch.float32)


def e4b15(device: str) -> bool:
    """Return whether vLLM stores fp8 keys in e4b15 on this GPU, as it does before Ada."""
    if device == "cpu":
        return False
    from vllm.v1.attention.ops.triton_turboquant_decode import _use_fp8_e4b15

    return bool(_use_fp8_e4b15(0))


def store(keys: Any, values: Any, cache: Any, slots: Any, preset: Preset) -> None:
    """Quantize keys and values, (tokens, KV heads, head size), into a contiguous cache by vLLM's kernel."""
    from vllm.v1.attention.ops.triton_turboquant_store import triton_turboquant_store

    size, device = keys.shape[-1], keys.device.type
    numbers = codebook(size, preset.key_bits, device)
    triton_turboquant_store(
        keys,
        values,
        cache,
        slots,
        hadamard(size, device).float(),
        (numbers[:-1] + numbers[1:]) / 2,
        preset.mse_bits,
        preset.key_bytes(size),
        preset.value_bits,
        preset.fp8,
    )


def filled(case: Numeric, device: str) -> tuple[Any, Any]:
    """Return a cache and its block table; all bytes but those of the tokens make NaN.

    Behind the pages of a request, its row of the table names pages that do not exist.
    """
    import torch

    preset = PRESETS[case.preset]
    pages = [-(-length // case.page) for length in case.lengths]
    total, slot = sum(pages) + 2, preset.slot(case.size)
    cache = torch.full((total, case.page, case.kv_heads, slot), 0xFF, dtype=torch.uint8, device=device)
    table = torch.full((len(pages), max(pages) + 3), 1 << 30, dtype=torch.int32, device=device)
    order, used = torch.randperm(total, device=device).int(), 0
    dtype = getattr(torch, case.dtype)
    for row, (length, count) in enumerate(zip(case.lengths, pages, strict=True)):
        if not length:
            continue
        table[row, :count] = order[used : used + count]
        used += count
        place = torch.arange(length, device=device)
        slots = table[row, place // case.page].long() * case.page + place % case.page
        shape = (length, case.kv_heads, case.size)
        keys = torch.randn(shape, device=device) * (1 + torch.rand(*shape[:2], 1, device=device))
        values = torch.randn(shape, device=device) + 0.5
        store(keys.to(dtype), values.to(dtype), cache, slots, preset)
    if case.heads_first:  # not stored in this layout: before 0.26 vLLM's kernel takes a contiguous cache only
        cache = cache.transpose(1, 2).contiguous().transpose(1, 2)
    return cache, table


def numbers_of(slots: Any, preset: Preset, size: int) -> tuple[Any, Any]:
    """Return keys, rotated back, and values of tokens, (tokens, KV heads, head size), in float64."""
    import torch

    device, data, key_bytes = slots.device.type, size * preset.key_bits // 8, preset.key_bytes(size)
    if preset.fp8:
        keys = from_fp8(slots[..., :size], e4b15=e4b15(device))
    else:
        keys = codebook(size, preset.key_bits, device).double()[codes(slots[..., :data], preset.key_bits, size)]
        keys = keys / (keys.square().sum(-1, keepdim=True) + 1e-16).sqrt()
        keys = keys * slots[..., data : data + 2].contiguous().view(torch.float16).double()
        keys = keys @ hadamard(size, device)
    end = key_bytes + size * preset.value_bits // 8
    scale, minimum = slots[..., end : end + 4].contiguous().view(torch.float16).double().split(1, dim=-1)
    values = codes(slots[..., key_bytes:end], preset.value_bits, size).double() * scale + minimum
    return keys, values


def attention(case: Numeric, query: Any, cache: Any, table: Any) -> Any:
    """Return attention in float64; tokens that see nothing are 0."""
    import torch

    preset, scale = PRESETS[case.preset], case.size**-0.5
    output = torch.zeros(query.shape, dtype=torch.float64, device=query.device)
    for request, length in enumerate(case.lengths):
        pages = table[request, : -(-length // case.page)].long()
        keys, values = numbers_of(cache[pages].flatten(0, 1)[:length], preset, case.size)
        for token in range(case.window):
            seen, at = length - case.window + token + 1, request * case.window + token
            if seen <= 0:
                continue
            heads = query[at].double().unflatten(0, (case.kv_heads, case.group))
            weights = torch.einsum("hgd,nhd->hgn", heads, keys[:seen]).mul(scale).softmax(-1)
            output[at] = torch.einsum("hgn,nhd->hgd", weights, values[:seen]).flatten(0, 1)
    return output
