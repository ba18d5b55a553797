"""How the kernels of `turboquant_decode` are launched: tile sizes, warps and splits by the shape of a batch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm import triton_utils

if TYPE_CHECKING:
    import torch

SHORTEST = 64  # tokens of a split; fewer do not pay for the program's start
MOST_SPLITS = 256  # a power of two
COMBINED = 16  # splits that a program of the second kernel adds at a time
OWN = "VPATCH_TQ_DECODE_LAUNCHES"  # a file that `python -m benchmarks.decode --part tune` has printed

Bits = tuple[int, int]
"""Bits of a key's and of a value's code; 8 is fp8."""


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
    prefetch: bool = True
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


@dataclass(frozen=True)
class Rule:
    """A launch for the batches that are within all limits.

    Attributes:
        head_size: at most.
        rows: query heads of a KV head times tokens of a window, at most.
        heads: requests times KV heads of a batch, at most.
        key_bits: of a key's code; None for any.
        value_bits: of a value's code; None for any.
    """

    launch: Launch
    head_size: int = 256
    rows: int = 1 << 30
    heads: int = 1 << 30
    key_bits: int | None = None
    value_bits: int | None = None

    def covers(self, heads: int, head_size: int, rows: int, bits: Bits) -> bool:
        """Whether it is for such a batch."""
        limited = heads <= self.heads and head_size <= self.head_size and rows <= self.rows
        return limited and self.key_bits in (None, bits[0]) and self.value_bits in (None, bits[1])


RULES = (
    # The 8 parts of a word of 3-bit values change their layout between warps, which takes twice to ten times as long.
    Rule(Launch(16, tile=32, warps=1), head_size=128, rows=16, value_bits=3),
    Rule(Launch(16, tile=32, warps=1), head_size=64, rows=16),
    Rule(Launch(16, tile=128, warps=4, programs=2), head_size=128, rows=16, heads=8),
    Rule(Launch(16, tile=32, warps=1), head_size=128, rows=16),
    Rule(Launch(32, tile=32, warps=1), head_size=128),
    Rule(Launch(16, tile=128, warps=8, programs=1), rows=16, heads=4),
    Rule(Launch(16, tile=64, warps=4, programs=2), rows=16, heads=16),
    # fp8 keys take fewer registers to decode: with 128, two more programs share a multiprocessor.
    Rule(Launch(16, tile=64, warps=4, prefetch=False, registers=128), rows=16, key_bits=8),
    Rule(Launch(16, tile=32, warps=2, programs=4), rows=16, heads=64),
    Rule(Launch(16, tile=32, warps=2), rows=16),
    Rule(Launch(32, tile=64, warps=4, programs=1), heads=4),
    Rule(Launch(32, tile=64, warps=4, programs=2), heads=32),
    Rule(Launch(32, tile=32, warps=2)),
)
"""The first that covers a batch is taken.

Measured on an H200: 4-bit codes, groups of 2 to 16 heads of size 128 and 256, contexts of 1K to 64K tokens, 1 to 32
requests, windows of 1 to 8 tokens; other codes and head size 64 with groups of 4 and 8. On other GPUs all of it is a
guess; `python -m benchmarks.decode --part tune` measures yours.
"""


def choose(requests: int, kv_heads: int, head_size: int, rows: int, bits: Bits) -> Launch:
    """Return the parameters for a batch.

    Args:
        requests: of the batch.
        kv_heads: of this rank.
        head_size: 64, 128 or 256.
        rows: query heads of a KV head times tokens of a window.
        bits: of the codes.

    Raises:
        ValueError: the file that `VPATCH_TQ_DECODE_LAUNCHES` names does not hold launches.
    """
    heads = requests * kv_heads
    rules = (*own(os.environ.get(OWN)), *RULES)
    return next(rule.launch for rule in rules if rule.covers(heads, head_size, rows, bits))


@cache
def own(file: str | None) -> tuple[Rule, ...]:
    """Return the rules of the user's file, those for few heads first; none without a file.

    Raises:
        ValueError: the file does not hold launches.
    """
    if not file:
        return ()
    try:
        found = [_rule(entry) for entry in json.loads(Path(file).read_text())["launches"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{OWN}={file}: not what `python -m benchmarks.decode --part tune` prints: {error}") from error
    return tuple(sorted(found, key=lambda rule: (rule.head_size, rule.rows, rule.heads)))


def _rule(entry: Mapping[str, Any]) -> Rule:
    return Rule(
        Launch(**entry["launch"]),
        head_size=entry["head_size"],
        rows=max(16, entry["rows"]),
        heads=entry["requests"] * entry["kv_heads"],
        key_bits=entry["key_bits"],
        value_bits=entry["value_bits"],
    )


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


def batches_to_compile(max_num_seqs: int, kv_heads: int, head_size: int, rows: int, bits: Bits) -> list[int]:
    """Return numbers of requests that between them have all parameters that a batch can have, the smallest ones."""
    first: dict[Launch, int] = {}
    for requests in range(1, max_num_seqs + 1):
        first.setdefault(choose(requests, kv_heads, head_size, rows, bits), requests)
    return list(first.values())


def most_parts(
    kv_heads: int, head_size: int, rows: int, bits: Bits, *, max_num_seqs: int, max_model_len: int, processors: int
) -> int:
    """Return the most parts that a batch of any size has: requests times splits, each a partial result of one head.

    Args:
        kv_heads: of this rank.
        head_size: 64, 128 or 256.
        rows: query heads of a KV head times tokens of a window.
        bits: of the codes.
        max_num_seqs: the most requests of a batch.
        max_model_len: the most tokens of a request.
        processors: multiprocessors of the GPU.
    """

    def parts(requests: int) -> int:
        launch = choose(requests, kv_heads, head_size, rows, bits)
        return requests * split_count(launch, requests, kv_heads, max_model_len, processors)

    return max(map(parts, range(1, max_num_seqs + 1)))


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; that of an H200 where Triton interprets its kernels."""
    import torch

    return 132 if interpreted() else torch.cuda.get_device_properties(device).multi_processor_count


def interpreted() -> bool:
    """Return whether Triton interprets its kernels, so that they run without a GPU."""
    knobs = getattr(triton_utils.triton, "knobs", None)  # without a GPU, vLLM has a stand-in for Triton, without knobs
    return bool(knobs and knobs.runtime.interpret)
