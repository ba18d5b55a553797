"""New keys for TurboQuant's cache: norm, division and rotation in one kernel, on tensor cores.

vLLM copies the keys to float32, takes their norms, divides, and multiplies by a float32 matrix. The last of these
kernels alone takes 52 us on an H200 for 8 keys of 128 numbers. This kernel reads the keys in their own type. The
entries of the Hadamard matrix, 1 and -1, are exact in that type, and so are the products in float32. The results
differ from vLLM's by rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm._vpatch.turboquant_decode_queries import butterfly, signs
from vllm._vpatch.turboquant_decode_supported import HEAD_SIZES, no_gpu
from vllm.triton_utils import tl, triton

if TYPE_CHECKING:
    import torch

MANY = 2048  # keys, from which on a program takes 32: by then programs of 16 have filled 128 multiprocessors
MOST_ROWS = 2**31 - 64  # a row's number, rounded up to whole programs, has 32 bits


@triton.jit(do_not_specialize=["rows"])
def rotate_kernel(
    key,
    rotated,
    norms,
    rows,
    token_stride,
    head_stride,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Write the norms of ROWS keys, and the keys divided by norm + 1e-8, times the Hadamard matrix, times SCALE.

    The matrix is the Kronecker product of one of PARTS rows and a smaller one. The smaller one is applied to each of
    the PARTS tiles of a key, the other between the tiles. So a program never holds a matrix of more than 64 rows.

    Only the number of rows is not specialized. Strides, and the alignment of the keys, are fixed for a model; knowing
    them, Triton loads 16 bytes at a time.
    """
    WIDTH: tl.constexpr = SIZE // PARTS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = row < rows
    column = tl.arange(0, WIDTH)
    source = (row // HEADS).to(tl.int64) * token_stride + (row % HEADS).to(tl.int64) * head_stride
    target = row.to(tl.int64) * SIZE
    matrix = signs(WIDTH, WIDTH, key.dtype.element_ty)
    squares = tl.zeros([ROWS], tl.float32)
    tiles = ()
    for i in tl.static_range(PARTS):
        part = tl.load(key + source[:, None] + (i * WIDTH + column)[None, :], mask=valid[:, None], other=0.0)
        wide = part.to(tl.float32)
        squares += tl.sum(wide * wide, 1)
        tiles = tiles + (tl.dot(part, matrix),)
    if PARTS > 1:
        tiles = butterfly(tiles, 1, PARTS)
    if PARTS > 2:
        tiles = butterfly(tiles, 2, PARTS)
    norm = tl.sqrt_rn(squares)
    tl.store(norms + row, norm, mask=valid)
    # Where the squares overflow, vLLM's quotients are 0; here a sum may have overflowed too, and inf * 0 would be NaN.
    overflowed = norm == float("inf")
    factor = tl.div_rn(tl.full([ROWS], SCALE, tl.float32), norm + 1e-8)
    for i in tl.static_range(PARTS):
        result = tl.where(overflowed[:, None], 0.0, tiles[i] * factor[:, None])
        tl.store(rotated + target[:, None] + (i * WIDTH + column)[None, :], result, mask=valid[:, None])


def rotated_keys(key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return new keys divided by their norms and rotated, and the norms, where `unrotated` has nothing against it.

    Args:
        key: (tokens, KV heads, head size), fp16 or bf16, of any strides with a contiguous last dimension.

    Returns:
        (tokens * KV heads, head size) and (tokens * KV heads, 1), both float32.
    """
    import torch

    tokens, heads, size = key.shape
    rows = tokens * heads
    rotated = torch.empty(rows, size, dtype=torch.float32, device=key.device)
    norms = torch.empty(rows, 1, dtype=torch.float32, device=key.device)
    shape = store_constants(rows, heads, size)
    rotate_kernel[(-(-rows // shape["ROWS"]),)](
        key, rotated, norms, rows, key.stride(0), key.stride(1), **shape, **STORE_OPTIONS
    )
    return rotated, norms


STORE_OPTIONS = {"num_warps": 4, "num_stages": 1}


def store_constants(rows: int, heads: int, size: int) -> dict[str, float]:
    """Return what the kernel is compiled for: two variants for each model, by the number of keys.

    Rows of a program and warps are a guess, not measured. Tensor cores take 16 rows at least. With 64 rows and 4 warps
    Triton would use `wgmma`, which failed in the kernel of `decode_attention`.
    """
    return {
        "HEADS": heads,
        "SIZE": size,
        "PARTS": max(1, size // 64),
        "ROWS": 16 if rows < MANY else 32,
        "SCALE": size**-0.5,
    }


def unrotated(key: torch.Tensor) -> str | None:
    """Return why `rotated_keys` cannot take these keys, or None if it can.

    Reads shapes, strides and types only, so that it works while a CUDA graph is captured.
    """
    import torch

    if key.ndim != 3 or key.shape[2] not in HEAD_SIZES:
        return f"keys of shape {tuple(key.shape)}"
    if key.dtype not in (torch.float16, torch.bfloat16) or key.stride(2) != 1:
        return f"keys of type {key.dtype} with strides {key.stride()}"
    if not 0 < key.shape[0] * key.shape[1] <= MOST_ROWS:
        return f"{key.shape[0]} tokens of {key.shape[1]} KV heads"
    reason: str | None = no_gpu()
    return reason
