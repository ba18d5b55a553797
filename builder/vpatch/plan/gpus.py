"""GPUs by name, with the memory that CUDA reports as their total: what vLLM takes its share of, less than is sold.

The numbers are those of PyTorch's messages ("GPU 0 has a total capacity of ... GiB") in public reports; drivers differ
by some 0.1 GiB. That of the H200 was measured (docs/gpu).
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches

from vpatch.errors import Failure, Problem
from vpatch.plan.model import GIB, Gpu


def _gpu(name: str, gib: float, capability: tuple[int, int], seen: str) -> Gpu:
    return Gpu(name, int(gib * GIB), capability, seen)


GPUS = (
    _gpu("RTX 3090", 23.69, (8, 6), "23.57 to 23.70 GiB reported"),
    _gpu("RTX 4090", 23.64, (8, 9), "23.52 to 23.65 GiB reported"),
    _gpu("RTX 5090", 31.36, (12, 0), "31.34 to 31.39 GiB reported"),
    _gpu("H100", 79.11, (9, 0), "79.11 to 79.21 GiB reported, 80 GB SXM"),
    _gpu("RTX PRO 6000", 94.97, (12, 0), "94.97 GiB reported"),
    _gpu("H200", 139.80, (9, 0), "139.72 to 139.81 GiB reported, 139.80 measured"),
    _gpu("B200", 178.35, (10, 0), "178.35 to 178.36 GiB reported"),
)
"""From the smallest to the largest."""


def gpu(name: str | None, memory: int | None = None) -> Gpu:
    """Give a GPU by its name, in any case and with or without spaces, hyphens and "RTX"; `memory` overrides its size.

    Raises:
        Failure: there is none of that name, and its memory is not given.
    """
    known = {_key(one.name): one for one in GPUS}
    if name is None:
        return Gpu("GPU", memory or 0, None, "--gpu-memory-gib")
    found = known.get(_key(name))
    if found is None and memory is None:
        near = get_close_matches(_key(name), known, 1, 0.6)
        hint = f"did you mean {known[near[0]].name}? " if near else ""
        names = ", ".join(one.name for one in GPUS)
        raise Failure(Problem("no such GPU", name, f"{hint}known: {names}; any other with --gpu-memory-gib"))
    if memory is None and found:
        return found
    return replace(found or Gpu(name, 0), memory=memory or 0, source="--gpu-memory-gib")


def _key(name: str) -> str:
    return (
        "".join(c for c in name.lower() if c.isalnum())
        .removeprefix("nvidia")
        .removeprefix("geforce")
        .replace("rtx", "")
    )
