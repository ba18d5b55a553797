"""Where a release looks for compiled models whose layers differ, or are the same with other weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vpatch_overlays.probes.compile_cache_key import folder

DIFFERENT: dict[str, dict[str, Any]] = {
    "kernel": {"kernel": "Marlin"},
    "name": {"weight": "weight_packed"},
    "layout": {"transposed": True},
    "GPU": {"capability": (8, 6)},
    "switch": {"more": {"apply_later": True}},
    "wrapped": {"wrapped": True},
}
SAME: dict[str, dict[str, Any]] = {
    "again": {},
    "values": {"value": 1.0},
    "cache": {"more": {"kv_cache": 7}},
}


def main(_home: str) -> dict[str, Any]:
    """Return the names of the folders."""
    # On older releases, folders of the user are in the name, too.
    os.environ.update(dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), "/nonexistent"))
    every: dict[str, dict[str, Any]] = {"first": {}} | DIFFERENT | SAME
    return {name: Path(folder(**how)).parts[-3] for name, how in every.items()}
