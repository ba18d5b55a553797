"""Scenario of `vpatch run`: the tree `farm` beside `tiles`, to whose files `vpatch apply` wrote the same overlays."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.validation.gpu.engines import EAGER, FARM, TILES, TQ, Probe
from tests.validation.gpu.probe import say

SERVED, DENSE, HYBRID, AGAIN = "run hybrid", "run dense", "run hyb", "run hyb again"
BOTH = (TILES, FARM)
LONGEST = (6144, 24000)
LOADED = ("loaded", ())
"""The step that prints where vLLM's modules come from."""
ROUNDS = (1, 2, 3)
MANIFEST, ASKED = "vpatch.json", "VPATCH_RUN"
HELD = "/memfd:vpatch-receipt (deleted)"


def started(number: int, *, cold: bool) -> Probe:
    """Return a probe of an engine's start. Its engine is that of `DENSE`, so its kernels are compiled before."""
    name, trees = (f"run start cold {number}", (FARM,)) if cold else (f"run start {number}", BOTH)
    return Probe(name, "dense", TQ, (LOADED,), EAGER, trees, alone=True, cold=cold)


RUNNING: Mapping[str, list[Probe]] = {
    "run": [
        Probe(SERVED, "hyb8", TQ, (("serve", (64, 20000, 40000, 65000)), LOADED), trees=BOTH),
        Probe(DENSE, "dense", TQ, (("logprobs", LONGEST),), EAGER, BOTH, references=((TILES, DENSE),)),
        # Alone: the first one chooses kernels by their times, and the others find its choice.
        Probe(HYBRID, "hyb", TQ, (("logprobs", LONGEST),), EAGER, BOTH, references=((TILES, HYBRID),), alone=True),
        Probe(AGAIN, "hyb", TQ, (("logprobs", LONGEST),), EAGER, (TILES,), references=((TILES, HYBRID),), alone=True),
    ],
    "run-start": [started(number, cold=cold) for number in ROUNDS for cold in (False, True)],
}
"""By name. Engines that are timed start in turn: tiles, a farm that is there, a farm that is made first; and again."""


def loaded(_: Any, __: Sequence[int], ___: Mapping[str, Any]) -> None:
    """Print where vLLM's modules come from, what the farm says of itself, and whether this process holds the receipt.

    The receipt is not asked: it counts only if vLLM itself called it.
    """
    # Not by getattr, which makes lazy modules load.
    found = {name: getattr(module, "__dict__", {}).get("__file__") for name, module in sorted(sys.modules.items())}
    files = {name: file for name, file in found.items() if file and name.partition(".")[0] == "vllm"}
    farm = Path(files["vllm"]).parents[1]
    manifest = farm / MANIFEST
    made = json.loads(manifest.read_text()) if manifest.is_file() else {}
    opened = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor that listed them
            opened.add(str(link.readlink()))
    extensions = [file for file in files.values() if file.endswith(".so")]
    say(
        modules=len(files),
        elsewhere=[f"{name}: {file}" for name, file in files.items() if not Path(file).is_relative_to(farm)],
        extensions=[
            str(Path(file).relative_to(farm)) if Path(file).is_relative_to(farm) else file for file in extensions
        ],
        linked=sum(not Path(file).resolve().is_relative_to(farm.resolve()) for file in extensions),
        changed=[file for file in made.get("files", ()) if str(farm / file) in files.values()],
        overlays=made.get("overlays"),
        digest=made.get("digest"),
        asked=os.environ.get(ASKED),
        held=HELD in opened,
    )
