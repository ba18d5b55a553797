"""Tars as they come in blocks, from an engine or a registry: read as one file, unpacked nowhere."""

from __future__ import annotations

import io
from collections.abc import Iterable
from tarfile import TarInfo
from typing import Any

from vpatch.image.model import Kind

WHITEOUT = ".wh."
"""How the name begins of a layer's entry that takes another away: OCI image specification, layer.md."""


class Joined(io.RawIOBase):
    """Reads blocks as one file."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks, self._rest = iter(blocks), memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer."""
        while not self._rest:
            if (block := next(self._blocks, None)) is None:
                return 0
            self._rest = memoryview(block)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def kind_of(member: TarInfo) -> Kind:
    """Say what a member of a tar is; a hard link is `OTHER`."""
    if member.isreg():
        return Kind.FILE
    if member.isdir():
        return Kind.FOLDER
    return Kind.LINK if member.issym() else Kind.OTHER
