"""Steps with decodes without drafts: which of its states each row goes on from, on both runners."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import MagicMock

from vpatch_overlays.probes.hybrid_zero_drafts import DECODE, PROMPT, STEPS, VERIFIES, kimi_k3, on_v1, on_v2

OTHERS = {
    "drafts alone": [VERIFIES, VERIFIES],
    "drafts and a prompt": [VERIFIES, PROMPT],
    "a prompt's last token": [(1, 7, 8), (1, 7, 8)],
    "its last token beside drafts": [(1, 7, 8), VERIFIES],
}
"""In which stock vLLM is right; the last token of a prompt has one state alone."""

KIMI = ([0, -1], [0, 0], [3, 0, -1], [-1, -1])
"""Drafts by row, in four steps."""


def main(_home: str) -> dict[str, Any]:
    sys.modules.setdefault("diskcache", MagicMock())  # 0.18 and 0.19 import it, and nothing here uses it
    steps = {**STEPS, **OTHERS}
    return {
        "V1": {name: on_v1(rows) for name, rows in steps.items()},
        "V2": {name: on_v2(rows) for name, rows in steps.items()},
        "V2, no list": {name: on_v2(rows, drafts=False) for name, rows in steps.items()},
        "no states": {name: on_v1(rows, hybrid=False) for name, rows in steps.items()},
        "no speculation": on_v1([DECODE, DECODE], speculates=False),
        "Kimi K3": [kimi_k3(drafts) for drafts in KIMI],
    }
