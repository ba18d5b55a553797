"""Which NVIDIA driver CUDA code needs on Linux."""

from __future__ import annotations

from collections.abc import Iterable

# CUDA Toolkit 13.2 release notes, tables 2 and 3: any release of a major version runs on the driver of its first one.
_OLDEST = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}

# PTX ISA 9.3, "Release Notes": the CUDA release that brought a version of PTX, and the driver branch. Unlike machine
# code, PTX needs a driver that knows its version: minor version compatibility does not hold for it.
_PTX = {
    (7, 0): ("11.0", 450),
    (7, 1): ("11.1", 455),
    (7, 2): ("11.2", 460),
    (7, 3): ("11.3", 465),
    (7, 4): ("11.4", 470),
    (7, 5): ("11.5", 495),
    (7, 6): ("11.6", 510),
    (7, 7): ("11.7", 515),
    (7, 8): ("11.8", 520),
    (8, 0): ("12.0", 525),
    (8, 1): ("12.1", 530),
    (8, 2): ("12.2", 535),
    (8, 3): ("12.3", 545),
    (8, 4): ("12.4", 550),
    (8, 5): ("12.5", 555),
    (8, 6): ("12.7", 565),
    (8, 7): ("12.8", 570),
    (8, 8): ("12.9", 575),
    (9, 0): ("13.0", 580),
    (9, 1): ("13.1", 590),
    (9, 2): ("13.2", 595),
    (9, 3): ("13.3", 610),
}


def oldest_driver(cuda: str) -> str:
    """Give the drivers on which code for a CUDA release such as "13.0" or "13" runs: ">=580.65.06"; "" if unknown."""
    oldest = _OLDEST.get(cuda.partition(".")[0])
    return f">={oldest}" if oldest else ""


def release_of(isas: Iterable[tuple[int, int]]) -> str:
    """Give the CUDA release that the newest of some versions of PTX came with; "" where it is not known."""
    return _PTX.get(max(isas, default=(0, 0)), ("", 0))[0]


def compiling_driver(isas: Iterable[tuple[int, int]]) -> str:
    """Give the driver branches that compile PTX of these versions: ">=580"; "" where any does that is still about."""
    newest = max(isas, default=(0, 0))
    if newest > max(_PTX):
        return f">{_PTX[max(_PTX)][1]}"
    return f">={_PTX[newest][1]}" if newest in _PTX else ""
