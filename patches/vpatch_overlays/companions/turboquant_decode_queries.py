"""Queries for the kernels of `turboquant_decode`: scaled, rotated like the keys, in the tiles that the keys come in."""

from __future__ import annotations

from vllm.triton_utils import tl, triton


@triton.jit
def signs(WIDTH: tl.constexpr, COUNT: tl.constexpr, dtype: tl.constexpr):
    """Return the Hadamard matrix of COUNT rows: entry (i, j) is -1 if i & j has an odd number of bits, 1 otherwise.

    Up to 64 rows; beyond COUNT there are zeros.
    """
    i = tl.arange(0, WIDTH)
    odd = i[:, None] & i[None, :]
    odd = odd ^ (odd >> 4)
    odd = odd ^ (odd >> 2)
    odd = odd ^ (odd >> 1)
    entries = tl.where((odd & 1) == 1, -1.0, 1.0)
    if WIDTH > COUNT:
        entries = tl.where((i < COUNT)[None, :], entries, 0.0)
    return entries.to(dtype)


@triton.jit
def butterfly(tiles, DISTANCE: tl.constexpr, PARTS: tl.constexpr):
    """Return sums and differences of the tiles that are DISTANCE apart."""
    mixed = ()
    for i in tl.static_range(PARTS):
        if i & DISTANCE:
            mixed = mixed + (tiles[i - DISTANCE] - tiles[i],)
        else:
            mixed = mixed + (tiles[i] + tiles[i + DISTANCE],)
    return mixed


@triton.jit
def rotated(query, row, valid, factor, PARTS: tl.constexpr, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """Return queries * Hadamard matrix * factor in fp16, where tile i holds dimensions i, i + PARTS, ...

    The matrix is the Kronecker product of a small one, applied within tiles on tensor cores (1 and -1 are exact in any
    type), and one of PARTS rows, applied between tiles.
    """
    column = tl.arange(0, WIDTH)
    matrix = signs(WIDTH, COUNT, query.dtype.element_ty)
    tiles = ()
    for i in tl.static_range(PARTS):
        inside = valid[:, None] & (column < COUNT)[None, :]
        part = tl.load(query + row[:, None] + (column * PARTS + i)[None, :], mask=inside, other=0.0)
        tiles = tiles + (tl.dot(part, matrix),)
    tiles = butterfly(tiles, 1, PARTS)
    tiles = butterfly(tiles, 2, PARTS)
    if PARTS == 8:
        tiles = butterfly(tiles, 4, PARTS)
    halves = ()
    for i in tl.static_range(PARTS):
        halves = halves + ((tiles[i] * factor).to(tl.float16),)
    return halves


@triton.jit
def as_is(query, row, valid, factor, SIZE: tl.constexpr):
    """Return queries * factor in fp16, as one tile."""
    column = tl.arange(0, SIZE)
    tile = tl.load(query + row[:, None] + column[None, :], mask=valid[:, None], other=0.0)
    return ((tile.to(tl.float32) * factor).to(tl.float16),)
