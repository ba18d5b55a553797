"""What is in a safetensors file, from its header alone: eight bytes of length, JSON, and no tensor is read."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vpatch.errors import Failure, Problem
from vpatch.plan.jsonfile import UNREADABLE, Fields, parsed

Read = Callable[[int, int], bytes]
"""Gives so many bytes from an offset on; fewer where the file ends."""

LONGEST_HEADER = 100_000_000
"""What safetensors itself refuses to go beyond."""
LARGEST = 1 << 50
WRONG = "wrong safetensors header"
NO_SHAPE = -1

BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}


def of_file(path: Path) -> dict[str, int]:
    """Give the bytes of every tensor in a file, by name.

    Raises:
        Failure: it cannot be read, or its header is not true.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would wait for a writer
        with open(descriptor, "rb") as file:  # noqa: PTH123  # it is open already
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise Failure(Problem(UNREADABLE, str(path), "it is not a regular file"))

            def read(start: int, count: int) -> bytes:
                file.seek(start)
                return file.read(count)

            return sizes(read, found.st_size, str(path))
    except OSError as error:
        raise Failure(Problem(UNREADABLE, str(path), error.strerror or str(error))) from error


def sizes(read: Read, size: int, where: str) -> dict[str, int]:
    """Give the bytes of every tensor in a file of `size` bytes, by name; `Failure` if its header is not true."""
    length = int.from_bytes(read(0, 8), "little")
    if size < 8 or length > size - 8:
        raise Failure(Problem(WRONG, where, f"the file is cut short: {size:,} bytes with a header of {length:,}"))
    if length > LONGEST_HEADER:
        raise Failure(Problem(WRONG, where, f"it is {length:,} bytes long"))
    text = read(8, length)
    if len(text) < length:
        raise Failure(Problem(WRONG, where, f"it ends after {len(text):,} of {length:,} bytes"))
    header = parsed(text, where)
    fields = Fields({name: entry for name, entry in header.items() if name != "__metadata__"}, where)
    ends = {name: _offsets(fields, name) for name in fields.data}
    if not fields.problems:
        _no_gaps(fields, ends, size - 8 - length)
    if fields.problems:
        first, more = fields.problems[0], len(fields.problems) - 1
        raise Failure(Problem(WRONG, where, f"{first.cause}{f', and {more:,} more like this' if more else ''}"))
    return {name: end - start for name, (start, end) in ends.items()}


def _offsets(fields: Fields, name: str) -> tuple[int, int]:
    """Give where a tensor begins and ends; noted if that is not what its dtype and shape take."""
    entry = fields.data[name]
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]} if 0 <= start <= end:
            wanted = _bytes(dtype, shape)
            if wanted == NO_SHAPE:
                fields.wrong(_short(name), "has a shape that no tensor has")
            elif wanted is not None and end - start != wanted:
                fields.wrong(_short(name), f"takes {end - start} bytes, {dtype} of its shape takes {wanted}")
            return start, end
    fields.wrong(_short(name), "does not have a dtype, a shape and two offsets in order")
    return 0, 0


def _bytes(dtype: str, shape: list[Any]) -> int | None:
    """Give what a tensor takes, None if its dtype is not known here; NO_SHAPE if no tensor has such a shape."""
    count = 1
    for dimension in shape:
        if type(dimension) is not int or dimension < 0:
            return NO_SHAPE
        count = min(count * dimension, LARGEST)
    return -(-count * BITS[dtype] // 8) if dtype in BITS else None


def _no_gaps(fields: Fields, ends: Mapping[str, tuple[int, int]], size: int) -> None:
    """Note tensors that share bytes or leave some out, and data that is longer or shorter than said."""
    last = 0
    for name, (start, end) in sorted(ends.items(), key=lambda item: item[1]):
        if start != last:
            fields.wrong(_short(name), f"begins at {start}, {'inside' if start < last else 'after'} the end at {last}")
        last = max(last, end)
    if last > size:
        fields.problems.insert(0, Problem(WRONG, fields.where, f"the file is cut short: {size:,} of {last:,} bytes"))
    elif last < size and not fields.problems:
        fields.problems.append(Problem(WRONG, fields.where, f"{size - last:,} bytes belong to no tensor"))


def _short(name: str) -> str:
    return name if len(name) <= 100 else f"{name[:97]}..."
