"""Print all launch parameters of `turboquant-decode`, as JSON; run by `environment.probe`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from tests.validation.cpu.probe_decode import companion
from tests.validation.cpu.probing import report

PROCESSORS = 132
CONTEXT = 65_536


TUNED = {"rows": 16, "tile": 128, "warps": 2, "prefetch": False, "registers": None, "programs": 3}


def tuned(launch: Any, home: Path) -> dict[str, Any]:
    """Return launches with a file of the user's for up to 16 heads, and what is said of files that are not such."""
    file = home / "launches.json"
    entry = {"head_size": 128, "rows": 4, "requests": 2, "kv_heads": 8, "key_bits": 4, "value_bits": 4, "launch": TUNED}
    file.write_text(json.dumps({"gpu": "some", "launches": [entry]}))
    os.environ[launch.OWN] = str(file)
    asked = ((1, 8, 128, 4, (4, 4)), (2, 8, 128, 4, (4, 4)), (3, 8, 128, 4, (4, 4)), (2, 8, 128, 4, (3, 3)))
    found: dict[str, Any] = {"own": [asdict(launch.choose(*one)) == TUNED for one in asked]}
    for name, text in (("no launches", "{}"), ("wgmma", json.dumps({"launches": [wgmma(entry)]}))):
        bad = home / f"{name}.json"
        bad.write_text(text)
        os.environ[launch.OWN] = str(bad)
        try:
            launch.choose(*asked[0])
        except ValueError as error:
            found[name] = str(error).replace(str(home), "HOME")
    del os.environ[launch.OWN]
    return found


def wgmma(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry whose launch is refused."""
    return entry | {"launch": TUNED | {"rows": 64, "warps": 4}}


def main(home: str) -> dict[str, Any]:
    covered, launch = companion("turboquant_decode_supported"), companion("turboquant_decode_launch")
    found = set()
    batches = (*range(1, 18), 32, 33, 64, 128, 256, 1024)
    for bits, size, group, window, requests, kv_heads in product(
        covered.PRESETS, covered.HEAD_SIZES, covered.GROUPS, covered.WINDOWS, batches, (1, 2, 4, 8, 16)
    ):
        rows = group * window
        chosen = launch.choose(requests, kv_heads, size, rows, bits)
        splits = launch.split_count(chosen, requests, kv_heads, CONTEXT, PROCESSORS)
        found.add((chosen.rows, chosen.tile, chosen.warps, splits, -(-rows // chosen.rows)))
    try:
        launch.Launch(rows=64, tile=32, warps=4, prefetch=False)
        error = ""
    except ValueError as refused:
        error = str(refused)
    limits = {"max_num_seqs": 39, "max_model_len": CONTEXT, "processors": PROCESSORS}
    splits_of = [
        requests * launch.split_count(launch.choose(requests, 8, 128, 4, (4, 4)), requests, 8, CONTEXT, PROCESSORS)
        for requests in range(1, 40)
    ]
    return {
        "tuned": tuned(launch, Path(home)),
        "launches": sorted(found),
        "error": error,
        "parts": launch.most_parts(8, 128, 4, (4, 4), **limits),
        "most": max(splits_of),
        "batches": launch.batches_to_compile(39, 2, 256, 8, (4, 4)),
    }


if __name__ == "__main__":
    report(main)
