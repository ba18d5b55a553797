"""Record what the kernels of `turboquant-decode` use on each GPU: `python -m tests.validation.cpu.decode_record`.

Writes `docs/turboquant-decode-kernels.json`. Takes about five minutes, and no GPU.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.paths import ROOT
from tests.releases import tree_of
from tests.validation.cpu.decode_cases import BITS
from tests.validation.cpu.environment import environ, interpreter

RELEASE = "0.26.0"
RECORD = ROOT / "docs/turboquant-decode-kernels.json"
TARGETS = (80, 86, 89, 90, 120)

Shape = tuple[int, int, int, int, int]
SHAPES: list[Shape] = [  # head size, KV heads, query heads of each, window, requests: every launch there is
    (64, 8, 4, 1, 32),
    *((128, 8, 4, 1, requests) for requests in (1, 32)),
    *((size, 8, 8, 4, 32) for size in (64, 128)),
    *((256, kv_heads, 4, 1, requests) for kv_heads, requests in ((2, 1), (8, 1), (8, 32))),
    *((256, kv_heads, 8, 4, requests) for kv_heads, requests in ((2, 1), (8, 1), (8, 32))),
]

STORES: list[list[Any]] = [["store", *case] for case in product(TARGETS, (64, 128, 256), (8, 65_536))]
"""Arguments of `probe_decode_compiles.store`: every variant of the kernel for new keys on 8 KV heads."""


def kernels(presets: Iterable[str], shapes: Sequence[Shape] = SHAPES, *, ptx: bool = True) -> list[list[Any]]:
    """Return the arguments of `probe_decode_compiles.both` for some presets and shapes on all GPUs."""
    return [[target, BITS[preset], *shape, ptx] for preset, target, shape in product(presets, TARGETS, shapes)]


def compiled(cases: list[list[Any]]) -> list[list[dict[str, int]]]:
    """Compile in a process of its own: in those of other probes Triton interprets, its own functions included.

    Returns what both kernels of each case use.
    """
    tree = tree_of(RELEASE)
    with TemporaryDirectory() as home:
        ran = subprocess.run(
            [
                interpreter(RELEASE),
                "-m",
                "tests.validation.cpu.probing",
                "probe_decode_compiles",
                home,
                json.dumps(cases),
            ],
            env=environ(tree, Path(home)) | {"TRITON_INTERPRET": "0"},
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: list[list[dict[str, int]]] = json.loads(ran.stdout)
    assert len(found) == len(cases)
    return found


def main() -> None:
    """Compile everything, one preset after the other, and write the record."""
    rows = []
    for preset in BITS:
        cases = kernels([preset])
        for (target, _, *shape, _), (split, combine) in zip(cases, compiled(cases), strict=True):
            named = dict(zip(("head_size", "kv_heads", "group", "window", "requests"), shape, strict=True))
            rows.append({"gpu": f"sm_{target}", "preset": preset, **named, "split": split, "combine": combine})
    RECORD.write_text(f'{{"release": "{RELEASE}", "kernels": [\n{lines(rows)}\n], "store": [\n{lines(stores())}\n]}}\n')


def stores() -> list[dict[str, Any]]:
    return [
        {"gpu": f"sm_{target}", "head_size": size, "keys": keys, "store": kernel}
        for (_, target, size, keys), (kernel,) in zip(STORES, compiled(STORES), strict=True)
    ]


def lines(rows: Iterable[dict[str, Any]]) -> str:
    return ",\n".join(json.dumps(row) for row in rows)


if __name__ == "__main__":
    main()
