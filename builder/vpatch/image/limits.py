"""The most that vpatch takes of an image that anybody may have made: what goes beyond is refused, and the limit named.

Generous for what there is: vLLM's images have some 10 GB packed, and its largest extension 308 MB (0.33.0).
"""

from __future__ import annotations

from dataclasses import dataclass

from vpatch.net import error_text

size = error_text.size

LAYERS = 512
IMAGE = 64 << 30  # bytes that are read of all layers: packed, and unpacked
ENTRIES = 1_000_000  # files, folders and links of all layers
NAMES = 256 << 20  # characters of their paths, and of the folders above them
PATH = 4096  # characters of a path, or of what a link leads to: as many as Linux takes
DEPTH = 256  # folders that a path is in: each is looked for in each layer
HEADER = 1 << 20  # bytes of all that a tar says of one entry
GLOBALS = 100  # things that a tar says of all its entries
FILE = 4 << 30  # bytes of a file that is looked into: a compiled extension
SOURCE = 64 << 20  # bytes of a file that is read as a whole: a module
MEMORY = 1 << 30  # bytes of all small files that are kept
COPIES = 100  # large files that are kept, each a temporary file that stays open

VLLMS = 16  # places that look like a vLLM
RECORDS = 100  # places that look like a vLLM in some layer, those included that layers above hide


class LimitError(Exception):
    """A limit is exceeded; the text goes on from the name of a layer."""


@dataclass
class Spent:
    """What the layers of one image have taken so far."""

    unpacked: int = 0
    entries: int = 0
    names: int = 0
    memory: int = 0
    copies: int = 0

    def unpack(self, count: int) -> None:
        """Count bytes of a tar.

        Raises:
            LimitError: there are too many.
        """
        self.unpacked += count
        if self.unpacked > IMAGE:
            raise LimitError(f"unpacks, with those above it, to more than {size(IMAGE)}")

    def name(self, characters: int) -> None:
        """Count an entry, and the characters of the names that it adds.

        Raises:
            LimitError: there are too many.
        """
        self.entries += 1
        self.names += characters
        if self.entries > ENTRIES:
            raise LimitError(f"has, with those above it, more than {ENTRIES:,} entries")
        if self.names > NAMES:
            raise LimitError(f"has, with those above it, names of more than {size(NAMES)}")

    def keep(self, count: int) -> None:
        """Count bytes that are kept in memory.

        Raises:
            LimitError: there are too many.
        """
        self.memory += count
        if self.memory > MEMORY:
            raise LimitError(f"has, with those above it, small files of more than {size(MEMORY)} that would be read")

    def copy(self) -> None:
        """Count a large file that is kept as a temporary one.

        Raises:
            LimitError: there are too many.
        """
        self.copies += 1
        if self.copies > COPIES:
            raise LimitError(f"has, with those above it, more than {COPIES} large files that would be read")
