"""Chunks of drawn prompts, and columns of drawn states, with blocks of one size and of two."""

from __future__ import annotations

import random
from typing import Any

from vpatch_overlays.probes.hybrid_align_progress import chunks, scheduler
from vpatch_overlays.probes.hybrid_block_units import STATES, column

DRAWS = 1500


def ends(smaller: int) -> list[list[int]]:
    """Return the ends of the chunks of drawn prompts; the smallest block is of so many tokens, 0: as that of states."""
    draw = random.Random(3)  # noqa: S311 - it is to be repeatable
    found = []
    for _ in range(DRAWS):
        block, drafts = draw.choice((64, 576, 1600, 7168)), draw.choice((0, 1, 3))
        held = scheduler(draw.choice((block, 2 * block, 3 * block + 17)), block=block, drafts=drafts)
        held.cache_config.block_size = smaller or block
        left = [draw.randint(1, held.max_num_scheduled_tokens) for _ in range(8)]
        found.append([*chunks(held, draw.randrange(1, 5 * block), left)])
    return found


def columns(smaller: int) -> list[int | None]:
    """Return the columns of the states of drawn requests, none where the release keeps none; see `ends`."""
    from importlib.util import find_spec

    draw = random.Random(4)  # noqa: S311 - it is to be repeatable
    sizes = [(draw.randrange(100_000), draw.choice((64, 576, 7168))) for _ in range(200 if find_spec(STATES) else 0)]
    return [column(computed, block, smaller or block) for computed, block in sizes]


def main(_home: str) -> dict[str, Any]:
    return {
        "chunks": {"alike": ends(0), "smaller": ends(16)},
        "columns": {"alike": columns(0), "smaller": columns(16)},
    }
