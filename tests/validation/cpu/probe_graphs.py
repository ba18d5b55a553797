"""Drawn steps: which replay graphs of decodes, on both runners, and which rows Gated DeltaNet starts from nothing."""

from __future__ import annotations

import random
import sys
from dataclasses import asdict
from typing import Any
from unittest.mock import MagicMock

from vpatch_overlays.probes.hybrid_mtp_graphs import DECODES, DRAFTS, VERIFIES, Row, replays_on_v1, replays_on_v2
from vpatch_overlays.probes.hybrid_one_token import DECODE, NEW, ROWS, TAIL, builder, goes_on, metadata, pads

PROMPT, LAST, PADDED = Row(1 + DRAFTS, prompt=4), Row(1 + DRAFTS, computed=4), Row(1 + DRAFTS, DRAFTS, computed=7)
KINDS = {
    DRAFTS: (VERIFIES, VERIFIES, PADDED, PROMPT, LAST, Row(3, prompt=3)),
    0: (DECODES, DECODES, Row(1, prompt=1), Row(1, computed=7), Row(2, prompt=2)),
}
FIRST = (1, 0, 9)
"""The first chunk of a longer prompt."""
STEPS = 60


def dispatched(kinds: tuple[Row, ...], drafts: int, seed: int) -> dict[str, Any]:
    """Draw a step, and return what each runner makes of it."""
    draw = random.Random(seed)  # noqa: S311 - it is to be repeatable
    rows = draw.choices(kinds, k=draw.randint(1, 3))
    return {
        "rows": [asdict(row) for row in rows],
        "V1": replays_on_v1(rows, drafts),
        "V2": replays_on_v2(rows, drafts),
        "V1, no states": replays_on_v1(rows, drafts, hybrid=False),
        "V2, no states": replays_on_v2(rows, drafts, hybrid=False),
        "dummy runs": [replays_on_v1(rows, drafts, forced=forced) for forced in (True, False)],
        "V2, dummy run": replays_on_v2(rows, drafts, dummy_run=True),
    }


def built(seed: int) -> dict[str, Any]:
    """Draw a step, and return its metadata and what a graph of decodes would read."""
    draw = random.Random(seed)  # noqa: S311 - it is to be repeatable
    rows = draw.choices((DECODE, DECODE, TAIL, NEW, FIRST), k=draw.randint(1, 4))
    longer = draw.choices(((3, 0, 3), (2, 4, 6)), k=draw.choice((0, 0, 1, 2)))
    made = builder()
    found = metadata(made, [*rows, *longer], padding=0 if longer else draw.choice((0, 0, 2)))
    assert len(rows) + len(longer) <= ROWS
    return {
        "rows": [*rows, *longer],
        "goes on": goes_on(found)[: len(rows) + len(longer)],
        "metadata": {name: plain(value) for name, value in vars(found).items()},
        "read": [plain(made.non_spec_state_indices_tensor), plain(made.non_spec_query_start_loc)],
    }


def plain(value: Any) -> Any:
    """Return a value that JSON has."""
    return value.tolist() if hasattr(value, "tolist") else value


def main(_home: str) -> dict[str, Any]:
    sys.modules.setdefault("diskcache", MagicMock())  # 0.18 and 0.19 import it, and nothing here uses it
    return {
        "with drafts": [dispatched(KINDS[DRAFTS], DRAFTS, seed) for seed in range(STEPS)],
        "without": [dispatched(KINDS[0], 0, seed) for seed in range(STEPS)],
        "built": [built(seed) for seed in range(STEPS)],
        "padded": {
            f"{computed} {states}": pads(computed, states=states) for computed in (0, 7) for states in (True, False)
        },
    }
