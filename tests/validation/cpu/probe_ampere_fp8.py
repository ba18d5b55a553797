"""Which kernel a release takes for FP8, by the compute capability and the kinds of scales."""

from __future__ import annotations

from itertools import product
from typing import Any

from vpatch_overlays.probes.ampere_fp8 import chosen, pretend_cuda

CAPABILITIES = ((7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0))
SCALES = (("StaticTensor", "DynamicTensor"), ("StaticTensor", "StaticTensor"), ("StaticTensor", "DynamicToken"))
"""Those of weights and of activations."""


def main(_home: str) -> dict[str, Any]:
    pretend_cuda()
    return {
        f"{major}.{minor} {' '.join(scales)}": chosen((major, minor), scales)
        for (major, minor), scales in product(CAPABILITIES, SCALES)
    }
