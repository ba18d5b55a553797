"""How the kernels of `turboquant_decode` are launched: tile sizes, warps and splits by the shape of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from vllm import triton_utils

if TYPE_CHECKING:
    import torch

SHORTEST = 64  # tokens of a split; fewer do not pay for the program's start
MOST_SPLITS = 256  # a power of two
COMBINED = 16  # splits that a program of the second kernel adds at a time


@dataclass(frozen=True)
class Launch:
    """Parameters of the first kernel.

    Attributes:
        rows: query heads times tokens of a program.
        tile: cached tokens of one step.
        warps: of a program.
        prefetch: whether a step asks the L2 cache for the next tile.
        registers: of a thread, at most; None leaves it to the compiler.
        programs: that share the GPU, in multiples of its multiprocessors.
    """

    rows: int
    tile: int
    warps: int
    prefetch: bool
    registers: int | None = None
    programs: int = 8

    def __post_init__(self) -> None:
        """Refuse the combination that failed.

        Raises:
            ValueError: 64 rows or more with 4 warps or more. From there on Triton 3.6 uses Hopper's `wgmma`, and the
                kernel returned wrong results or made illegal accesses, with and without inline PTX.
        """
        if self.rows >= 64 and self.warps >= 4:
            raise ValueError(f"{self.rows} rows with {self.warps} warps give wrong results on Hopper")


def choose(requests: int, kv_heads: int, head_size: int, rows: int) -> Launch:
    """Return the parameters for a batch.

    Measured on an H200 with 4-bit codes, one to 128 requests of 1K to 64K tokens, groups of 4 to 16 heads and windows
    of 1 to 8 tokens. On other GPUs, with other codes and at head size 64 they are a guess.

    Args:
        requests: of the batch.
        kv_heads: of this rank.
        head_size: 64, 128 or 256.
        rows: query heads of a KV head times tokens of a window.
    """
    few = requests * kv_heads <= 32
    padded = min(32, max(16, _power_of_two(rows)))  # tensor cores take 16 rows
    if head_size > 128:
        # 128 registers let two more programs share a multiprocessor. With 32 rows they would spill.
        registers = None if few or rows > 16 else 128
        programs = (1 if requests * kv_heads <= 4 else 2) if few else 8
        return Launch(padded, tile=64, warps=4, prefetch=few, registers=registers, programs=programs)
    if rows > 32:
        return Launch(rows=64, tile=32, warps=2, prefetch=True)
    if rows > 16:
        return Launch(padded, tile=64, warps=4, prefetch=True)
    if few:
        return Launch(padded, tile=64, warps=4, prefetch=False, programs=4)
    return Launch(padded, tile=32, warps=1, prefetch=True, programs=16)


def split_count(launch: Launch, requests: int, kv_heads: int, context: int, processors: int) -> int:
    """Return the number of splits of each request.

    It depends on what is fixed for a CUDA graph only: a request of fewer tokens leaves splits empty.

    Args:
        launch: the parameters for the batch.
        requests: of the batch.
        kv_heads: of this rank.
        context: the most tokens that a request can have.
        processors: multiprocessors of the GPU; 132 on an H200.
    """
    wanted = launch.programs * processors // (requests * kv_heads)
    return max(1, min(wanted, -(-context // SHORTEST), MOST_SPLITS))


def batches_to_compile(max_num_seqs: int, kv_heads: int, head_size: int, rows: int) -> list[int]:
    """Return numbers of requests that between them have all parameters that a batch can have, the smallest ones."""
    first: dict[Launch, int] = {}
    for requests in range(1, max_num_seqs + 1):
        first.setdefault(choose(requests, kv_heads, head_size, rows), requests)
    return list(first.values())


def most_parts(
    kv_heads: int, head_size: int, rows: int, *, max_num_seqs: int, max_model_len: int, processors: int
) -> int:
    """Return the most parts that a batch of any size has: requests times splits, each a partial result of one head.

    Args:
        kv_heads: of this rank.
        head_size: 64, 128 or 256.
        rows: query heads of a KV head times tokens of a window.
        max_num_seqs: the most requests of a batch.
        max_model_len: the most tokens of a request.
        processors: multiprocessors of the GPU.
    """
    return max(
        requests
        * split_count(choose(requests, kv_heads, head_size, rows), requests, kv_heads, max_model_len, processors)
        for requests in range(1, max_num_seqs + 1)
    )


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; that of an H200 where Triton interprets its kernels."""
    import torch

    return 132 if interpreted() else torch.cuda.get_device_properties(device).multi_processor_count


def interpreted() -> bool:
    """Return whether Triton interprets its kernels, so that they run without a GPU."""
    knobs = getattr(triton_utils.triton, "knobs", None)  # without a GPU, vLLM has a stand-in for Triton, without knobs
    return bool(knobs and knobs.runtime.interpret)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
