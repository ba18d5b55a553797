"""Record what the kernels of `turboquant-decode` use on each GPU: `python -m tests.validation.cpu.decode_record`.

Writes `docs/turboquant-decode-kernels.json`. Takes about five minutes, and no GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from tests.paths import ROOT
from tests.releases import tree_of
from tests.validation.cpu.comparison import ran
from tests.validation.cpu.decode_cases import BITS

RELEASE = "0.26.0"
RECORD = ROOT / "docs/turboquant-decode-kernels.json"
TARGETS = (80, 86, 89, 90, 120)

Shape = tuple[int, int, int, int]
SHAPES: list[Shape] = [  # head size, query heads of a KV head, window, requests: on 8 KV heads, every launch there is
    *((size, 4, 1, requests) for size, requests in product((64, 128), (1, 32))),
    *((size, 8, window, 32) for size, window in product((64, 128), (4, 8))),
    *((256, 4, 1, requests) for requests in (1, 32)),
    (256, 8, 4, 32),
]


def kernels(presets: Iterable[str], shapes: Sequence[Shape] = SHAPES, *, ptx: bool = True) -> list[list[Any]]:
    """Return the arguments of `probe_decode_compiles.both` for some presets and shapes on all GPUs."""
    return [[target, BITS[preset], *shape, ptx] for preset, target, shape in product(presets, TARGETS, shapes)]


def main() -> None:
    """Compile everything, one preset after the other, and write the record."""
    rows = []
    for preset in BITS:
        cases = kernels([preset])
        found: Any = ran("probe_decode_compiles", RELEASE, tree_of(RELEASE), json.dumps(cases))
        for (target, _, *shape, _), (split, combine) in zip(cases, found, strict=True):
            named = dict(zip(("head_size", "group", "window", "requests"), shape, strict=True))
            rows.append({"gpu": f"sm_{target}", "preset": preset, **named, "split": split, "combine": combine})
        text = ",\n".join(json.dumps(row) for row in rows)
        RECORD.write_text(f'{{"release": "{RELEASE}", "kernels": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()
