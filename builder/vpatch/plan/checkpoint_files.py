"""Read files of a checkpoint that may be damaged or hostile: JSON objects, and the headers of safetensors files.

huggingface_hub reads headers, too, but it is an extra, waits for FIFOs, and does not compare a header with the tensors'
shapes and the file's size.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from vpatch import foreign
from vpatch.errors import Failure, Problem
from vpatch.foreign import opened_regular, read_regular
from vpatch.wrapping import shortened

T = TypeVar("T")
Read = Callable[[int, int], bytes]  # from an offset, so many bytes; fewer where the file ends

UNREADABLE, WRONG_HEADER = "cannot be read", "wrong safetensors header"
CONFIG_BYTES = 16 << 20  # far more than the longest known list of quantized modules takes
HEADER_BYTES = 100_000_000  # the limit of safetensors itself
LARGEST = 1 << 50
_FACTOR = 1_000_000
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


def unreadable(path: Path, error: OSError) -> Failure:
    """Return the failure for an error of the system."""
    return Failure(Problem(UNREADABLE, str(path), error.strerror or str(error)))


def read_bytes(path: Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes; raise `Failure` for anything else."""
    try:
        return read_regular(path, most)
    except OSError as error:
        raise unreadable(path, error) from error


def load_json(path: Path, most: int = CONFIG_BYTES) -> dict[str, Any]:
    """Read the JSON object in a regular file of at most `most` bytes; raise `Failure` for anything else."""
    return parse_json(read_bytes(path, most), str(path))


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object; raise `Failure` if it is not JSON, or no object."""
    try:
        parsed = foreign.parse_json(data, len(data))
    except ValueError as error:
        raise Failure(Problem(UNREADABLE, where, f"it is not JSON: {error}")) from error
    if not isinstance(parsed, dict):
        raise Failure(Problem(UNREADABLE, where, f"its JSON is {_kind(parsed)}, not an object"))
    return parsed


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "a number")


@dataclass(frozen=True)
class Fields:
    """A JSON object, read key by key with a type and a range; null counts as left out. `problems` collects errors."""

    data: Mapping[str, Any]
    where: str
    problems: list[Problem] = field(default_factory=list)
    scope: str = ""

    def wrong(self, key: str, cause: str) -> None:
        """Note a problem with a key."""
        self.problems.append(Problem("wrong value", self.where, f"{self.scope}{key} {cause}"))

    def raise_problems(self) -> None:
        """Raise `Failure` with every problem noted so far, each once; do nothing if there are none."""
        if self.problems:
            raise Failure(*dict.fromkeys(self.problems))

    def has(self, key: str) -> bool:
        """Return whether a key is there and not null."""
        return self.data.get(key) is not None

    def nulled(self, key: str) -> bool:
        """Return whether a key is there and null."""
        return key in self.data and self.data[key] is None

    def number(self, *keys: str, default: int | None = None, least: int = 1, most: int = 1 << 24) -> int:
        """Read a whole number under the first of `keys` that is there; one without a default must be."""
        key = next(filter(self.has, keys), keys[0])
        value = self.data.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            self.problems.append(Problem("missing key", self.where, f"{self.scope}{' or '.join(keys)}"))
            return least
        if type(value) is not int:  # bool is an int
            self.wrong(key, f"is {_kind(value)}, not a whole number" if type(value) is not float else f"is {value}")
        elif not least <= value <= most:
            shown = str(value) if abs(value) < 10**30 else "a number of more than thirty digits"
            self.wrong(key, f"is {shown}, not {least:,} to {most:,}")
        else:
            return value
        return least

    def factor(self, key: str) -> float:
        """Read a number above 0, with or without a fraction, by which something is multiplied: without the key, 1."""
        value = self.data.get(key)
        if value is None:
            return 1.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _FACTOR:
            self.wrong(key, f"is {_kind(value)}, not a number above 0, and {_FACTOR:,} at most")
            return 1.0
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """Read true or false."""
        return self._typed(key, default, "true or false")

    def text(self, key: str, default: str = "") -> str:
        """Read a string."""
        return self._typed(key, default, "a string")

    def texts(self, key: str) -> tuple[str, ...]:
        """Read a list of strings, empty if left out."""
        listed: list[Any] = self._typed(key, [], "a list of strings")
        if all(isinstance(one, str) for one in listed):
            return tuple(listed)
        self.wrong(key, "is not a list of strings")
        return ()

    def inside(self, key: str) -> Fields:
        """Read an object in this one, empty if left out."""
        return Fields(self._typed(key, {}, "an object"), self.where, self.problems, f"{self.scope}{key}.")

    def _typed(self, key: str, default: T, words: str) -> T:
        value = self.data.get(key)
        if isinstance(value, type(default)):
            return value
        if value is not None:
            self.wrong(key, f"is {_kind(value)}, not {words}")
        return default


def tensor_sizes_of(path: Path) -> dict[str, int]:
    """Read the bytes of each tensor in a safetensors file, as `tensor_sizes` does."""
    try:
        with opened_regular(path) as file:
            return tensor_sizes(lambda start, count: os.pread(file, count, start), os.fstat(file).st_size, str(path))
    except OSError as error:
        raise unreadable(path, error) from error


def tensor_sizes(read: Read, size: int, where: str) -> dict[str, int]:
    """Read the bytes of each tensor from the header of a safetensors file; raise `Failure` if it contradicts itself."""
    length = int.from_bytes(read(0, 8), "little")
    if size < 8 or length > size - 8:
        cause = f"the file is cut short: {size:,} bytes with a header of {length:,}"
        raise Failure(Problem(WRONG_HEADER, where, cause))
    if length > HEADER_BYTES:
        raise Failure(Problem(WRONG_HEADER, where, f"it is {length:,} bytes long"))
    text = read(8, length)
    if len(text) < length:
        raise Failure(Problem(WRONG_HEADER, where, f"it ends after {len(text):,} of {length:,} bytes"))
    tensors = {name: entry for name, entry in parse_json(text, where).items() if name != "__metadata__"}
    header = Fields(tensors, where)
    spans = {name: _span(header, name) for name in tensors}
    if not header.problems:
        _check_gaps(header, spans, size - 8 - length)
    if header.problems:
        first, more = header.problems[0], len(header.problems) - 1
        raise Failure(Problem(WRONG_HEADER, where, first.cause + (f", and {more:,} more like this" if more else "")))
    return {name: end - start for name, (start, end) in spans.items()}


def _span(header: Fields, name: str) -> tuple[int, int]:
    """Read a tensor's offsets, and note it if they do not match its dtype and shape."""
    match header.data[name]:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]} if 0 <= start <= end:
            if not all(type(one) is int and one >= 0 for one in shape):
                header.wrong(shortened(name, 100), "has a shape that no tensor has")
            elif dtype in _BITS:  # another one is new, and its offsets are all that is known
                count = functools.reduce(lambda product, one: min(product * one, LARGEST), shape, 1)
                if end - start != (size := -(-count * _BITS[dtype] // 8)):
                    header.wrong(shortened(name, 100), f"takes {end - start} bytes, {dtype} of its shape takes {size}")
            return start, end
    header.wrong(shortened(name, 100), "does not have a dtype, a shape and two offsets in order")
    return 0, 0


def _check_gaps(header: Fields, spans: Mapping[str, tuple[int, int]], size: int) -> None:
    """Note tensors that overlap or leave a gap, and data that is longer or shorter than the header says."""
    last = 0
    for name, (start, end) in sorted(spans.items(), key=lambda item: item[1]):
        if start != last:
            header.wrong(
                shortened(name, 100), f"begins at {start}, {'inside' if start < last else 'after'} the end at {last}"
            )
        last = max(last, end)
    if last > size:
        cause = f"the file is cut short: {size:,} of {last:,} bytes"
        header.problems.insert(0, Problem(WRONG_HEADER, header.where, cause))
    elif last < size and not header.problems:
        header.problems.append(Problem(WRONG_HEADER, header.where, f"{size - last:,} bytes belong to no tensor"))


def cache_home() -> Path:
    """Return the folder of the local cache, by the environment variables that huggingface_hub reads."""
    home = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if not home:
        xdg = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        home = os.path.join(os.environ.get("HF_HOME") or os.path.join(xdg, "huggingface"), "hub")  # noqa: PTH118
    return Path(os.path.expandvars(home)).expanduser()
