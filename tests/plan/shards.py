"""Safetensors files of zeros, and of lies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SIZES = {"BF16": 2, "F8_E4M3": 1, "F32": 4, "U8": 1}


def header(tensors: Mapping[str, tuple[str, list[int]]]) -> dict[str, Any]:
    """Give the header for tensors, each a dtype and a shape, one after the other."""
    found: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + SIZES[dtype] * product(shape)
        found[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    return found


def product(shape: list[int]) -> int:
    """Give how many numbers a shape has."""
    count = 1
    for dimension in shape:
        count *= dimension
    return count


def file(described: Mapping[str, Any], data: int | None = None) -> bytes:
    """Give a file with this header and so many bytes of data, by default as many as it says."""
    text = json.dumps(described).encode()
    if data is None:
        data = max((one["data_offsets"][1] for name, one in described.items() if name != "__metadata__"), default=0)
    return len(text).to_bytes(8, "little") + text + bytes(data)
