"""Caches of TurboQuant, and attention to them in float64: what the probes of its decode kernels compare with.

The format of the cache is read anew here: nothing is taken from the kernels under test. A token of a KV head holds the
key's codes (or fp8 bytes), its norm in fp16 (not for fp8), the value's codes, its scale and its minimum in fp16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

BITS = {"k8v4": (8, 4), "4bit_nc": (4, 4), "k3v4_nc": (3, 4), "3bit_nc": (3, 3)}


@dataclass(frozen=True)
class Case:
    """Requests of some lengths on one layer, with `group` query heads for each KV head."""

    preset: str = "4bit_nc"
    size: int = 128
    group: int = 4
    window: int = 1
    missing: int = 0  # tokens of the last window
    each: bool = True  # whether tokens have lengths of their own, or windows have
    heads_first: bool = True  # in memory, as from 0.26 on
    page: int = 16
    lengths: tuple[int, ...] = (0, 1, 70)
    kv_heads: int = 1
    dtype: str = "bfloat16"
    e4b15: bool = False
    splits: int | None = None  # of each request; None: as many as chosen
    stock: bool = False  # whether vLLM's kernel is run as well, which takes long

    @property
    def stored(self) -> Case:
        """The same as far as the cache is concerned."""
        return replace(self, group=1, window=1, missing=0, each=True, dtype="bfloat16", splits=None, stock=False)

    @property
    def tokens(self) -> int:
        return len(self.lengths) * self.window - self.missing

    @property
    def bits(self) -> tuple[int, int]:
        """Bits of a key's and of a value's code."""
        return BITS[self.preset]

    @property
    def key_bytes(self) -> int:
        """Bytes of a key with its norm."""
        bits = self.bits[0]
        return self.size * bits // 8 + (2 if bits != 8 else 0)

    @property
    def slot(self) -> int:
        """Bytes of a token."""
        return self.key_bytes + self.size * self.bits[1] // 8 + 4


@cache
def hadamard(size: int) -> Any:
    """Return the orthonormal Hadamard matrix, in float64."""
    import torch

    odd = torch.tensor([[(i & j).bit_count() & 1 for j in range(size)] for i in range(size)])
    return (1.0 - 2.0 * odd).double() / math.sqrt(size)


def codebook(case: Case) -> Any:
    """Return vLLM's codebook for the keys of a case."""
    from vllm.model_executor.layers.quantization.turboquant.centroids import get_centroids

    return get_centroids(case.size, 4 if case.bits[0] == 8 else case.bits[0])


@cache
def filled(case: Case) -> tuple[Any, Any]:
    """Return a cache and its block table. vLLM's own kernel writes the tokens; all other bytes make NaN."""
    import torch
    from vllm.v1.attention.ops.triton_turboquant_store import triton_turboquant_store

    torch.manual_seed(case.size)
    key_bits, value_bits = case.bits
    pages = [-(-length // case.page) for length in case.lengths]
    total = sum(pages) + 2
    shape = (total, case.kv_heads, case.page) if case.heads_first else (total, case.page, case.kv_heads)
    stored = torch.full((*shape, case.slot), 0xFF, dtype=torch.uint8)  # NaN in fp8 and fp16
    if case.heads_first:
        stored = stored.transpose(1, 2)
    order = torch.randperm(total).int()
    # Beyond a request's pages, its row names pages of others, and none.
    table = torch.full((len(pages), max(pages) + 3), 1 << 30, dtype=torch.int32)
    used = 0
    for row, count in enumerate(pages):
        table[row, :count] = order[used : used + count]
        used += count
    numbers = codebook(case)
    for row, length in enumerate(case.lengths):
        if not length:
            continue
        place = torch.arange(length)
        slots = table[row, place // case.page].long() * case.page + place % case.page
        keys = torch.randn(length, case.kv_heads, case.size) * (1 + torch.rand(length, case.kv_heads, 1))
        values = torch.randn(length, case.kv_heads, case.size) + 0.5
        triton_turboquant_store(
            keys,
            values,
            stored,
            slots,
            hadamard(case.size).float(),
            (numbers[:-1] + numbers[1:]) / 2,
            0 if key_bits == 8 else key_bits,
            case.key_bytes,
            value_bits,
            key_bits == 8,
        )
        if key_bits == 8:  # the interpreter converts to fp8 wrongly
            stored[slots // case.page, slots % case.page, :, : case.size] = fp8_bytes(keys, e4b15=case.e4b15)
    return stored, table


def fp8_bytes(numbers: Any, *, e4b15: bool) -> Any:
    """Return numbers as e4m3, or as e4b15: sign, 4 bits of exponent with bias 15, 3 of mantissa; here truncated."""
    import torch

    if not e4b15:
        return numbers.to(torch.float8_e4m3fn).view(torch.uint8)
    bits = (numbers / 4).half().clamp(-1.75, 1.75).view(torch.int16).int() & 0xFFFF  # 1.875 is the largest
    return (bits >> 8 & 0x80 | bits >> 7 & 0x7F).to(torch.uint8)


def from_fp8(stored: Any, *, e4b15: bool) -> Any:
    """Return what fp8 bytes stand for, in float64."""
    import torch

    if not e4b15:
        return stored.contiguous().view(torch.float8_e4m3fn).double()
    byte = stored.long()
    exponent, mantissa = byte >> 3 & 15, (byte & 7).double() / 8
    size = torch.where(exponent == 0, mantissa * 2.0**-14, (1 + mantissa) * 2.0 ** (exponent - 15).double())
    return torch.where(byte >= 128, -size, size)


def codes(stored: Any, bits: int, count: int) -> Any:
    """Unpack `count` codes of little-endian bits."""
    import torch

    bit = torch.arange(count * bits, device=stored.device)
    flat = stored.long()[..., bit // 8] >> bit % 8 & 1
    return (flat.unflatten(-1, (count, bits)) << torch.arange(bits, device=stored.device)).sum(-1)


def numbers_of(case: Case, slots: Any) -> tuple[Any, Any]:
    """Return keys, rotated back, and values of tokens, (tokens, KV heads, head size), in float64."""
    import torch

    key_bits, value_bits = case.bits
    data = case.size * key_bits // 8
    if key_bits == 8:
        keys = from_fp8(slots[..., : case.size], e4b15=case.e4b15)
    else:
        keys = codebook(case).double()[codes(slots[..., :data], key_bits, case.size)]
        keys = keys / (keys.square().sum(-1, keepdim=True) + 1e-16).sqrt()
        keys = keys * slots[..., data : data + 2].contiguous().view(torch.float16).double()
        keys = keys @ hadamard(case.size)
    at = case.key_bytes + case.size * value_bits // 8
    scale, minimum = slots[..., at : at + 4].contiguous().view(torch.float16).double().split(1, dim=-1)
    values = codes(slots[..., case.key_bytes : at], value_bits, case.size).double() * scale + minimum
    return keys, values


def attention(case: Case, query: Any, scale: float) -> Any:
    """Return attention in float64; rows that see no token are 0."""
    import torch

    stored, table = filled(case.stored)
    output = torch.zeros(query.shape, dtype=torch.float64)
    for request, length in enumerate(case.lengths):
        pages = table[request, : -(-length // case.page)].long()
        keys, values = numbers_of(case, stored[pages].flatten(0, 1)[:length])
        for token in range(case.window):
            seen, at = length - case.window + token + 1, request * case.window + token
            if seen <= 0 or at >= case.tokens:
                continue
            heads = query[at].double().unflatten(0, (case.kv_heads, case.group))
            weights = torch.einsum("hgd,nhd->hgn", heads, keys[:seen]).mul(scale).softmax(-1)
            output[at] = torch.einsum("hgn,nhd->hgd", weights, values[:seen]).flatten(0, 1)
    return output
