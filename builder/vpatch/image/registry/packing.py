"""What a layer is packed with, told by its first bytes: registries' media types say less than is true."""

from __future__ import annotations

import gzip
import hashlib
import io
from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO

import zstandard

from vpatch.image import limits
from vpatch.image.limits import Spent
from vpatch.image.tar import Joined

BLOCK = 1 << 16


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


class Tape:
    """A tar as `tarfile` reads it: once, forward only; hashed, and counted in `spent`.

    Until `data` is set, no more than `limits.HEADER` is read after each `header`: a header says itself how long it is.
    """

    def __init__(self, source: BinaryIO, spent: Spent) -> None:
        self._source, self.spent, self._position, self._left = source, spent, 0, limits.HEADER
        self.digest = hashlib.sha256()
        self.data = False

    def header(self) -> None:
        """Go on to the next entry."""
        self.data, self._left = False, limits.HEADER

    def tell(self) -> int:
        """The position in bytes."""
        return self._position

    def seek(self, position: int) -> None:
        """Pass over what comes before `position`, or all of it if it ends before.

        Raises:
            ValueError: that was read already.
        """
        if position < self._position:
            raise ValueError("an entry begins before the one above it")
        while self._position < position and self._take(min(BLOCK, position - self._position)):
            continue

    def read(self, size: int) -> bytes:
        """Read so many bytes, or what there is.

        Raises:
            LimitError: of a header, too many; or of the image.
            ValueError: a header says that it has less than nothing.
        """
        if size < 0:
            raise ValueError("a header is of a negative size")
        if not self.data:
            self._left -= size
            if self._left < 0:
                raise limits.LimitError(f"has an entry with a header of more than {limits.size(limits.HEADER)}")
        blocks = []
        while size > 0 and (block := self._take(size)):
            blocks.append(block)
            size -= len(block)
        return b"".join(blocks)

    def _take(self, size: int) -> bytes:
        block = self._source.read(size)
        self.spent.unpack(len(block))
        self._position += len(block)
        self.digest.update(block)
        return block
