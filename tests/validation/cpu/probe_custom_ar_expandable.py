"""What the allocator is while groups with custom all-reduce capture, by its configuration."""

from __future__ import annotations

import os
from typing import Any

from vpatch_overlays.probes.custom_ar_expandable import CONF, FAILS, captured

OTHERS = "max_split_size_mb:512,garbage_collection_threshold:0.8"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "on": (CONF, {}),
    "on, first": ("expandable_segments:True, max_split_size_mb:512", {}),
    "alone": ("expandable_segments:True", {}),
    "on, an error": (CONF, {"error": FAILS}),
    "on, three groups": (CONF, {"groups": 3}),
    "on, all-reduce disabled": (CONF, {"disabled": True}),
    "off": ("expandable_segments:False,max_split_size_mb:512", {}),
    "not named": (OTHERS, {}),
    "unset": ("", {}),
}
NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def main(_home: str) -> dict[str, Any]:
    found = {name: captured(conf, **how) for name, (conf, how) in CASES.items()}
    return found | {"left": [name for name in NAMES if os.environ.get(name)]}
