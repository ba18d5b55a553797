"""What a layer is packed with, told by its first bytes: registries' media types say less than is true."""

from __future__ import annotations

import gzip
import hashlib
import io
from collections.abc import Iterator
from itertools import chain
from typing import Any, BinaryIO

import zstandard

from vpatch.image.tar import Joined

BLOCK = 1 << 16  # the more, the more does tarfile copy for each header


def unpacked(blob: Iterator[bytes]) -> BinaryIO:
    """Give what gzip or zstd packed, or the bytes themselves."""
    magic = b""
    while len(magic) < 4 and (block := next(blob, b"")):
        magic += block
    packed = io.BufferedReader(Joined(chain([magic], blob)), BLOCK)
    if magic[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=packed)  # type: ignore[return-value]
    if magic[:4] == b"\x28\xb5\x2f\xfd" or magic[1:4] == b"\x2a\x4d\x18":  # a frame, or one to be skipped
        return zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
    return packed


class Hashed(io.RawIOBase):
    """Reads, and knows the digest of all that was read."""

    def __init__(self, source: BinaryIO) -> None:
        self._source, self.digest = source, hashlib.sha256()

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer."""
        data = self._source.read(len(buffer))
        self.digest.update(data)
        buffer[: len(data)] = data
        return len(data)
