"""Add a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch.core.marks import mark
from vpatch.core.overlay import COMPANIONS
from vpatch.core.parse import Lost
from vpatch.core.verdict import Finding, Found

if TYPE_CHECKING:
    from vpatch.core.overlay import Reach
    from vpatch.core.workspace import Workspace


@dataclass(frozen=True)
class AddFile:
    """Put a new file, a companion module, into the tree; its first line is the mark. `text` is written as UTF-8.

    Raises:
        ValueError: `file` is not below `vllm/_vpatch/`, where nothing of upstream's can come to be.
    """

    file: str
    text: str
    scope: str = ""

    def __post_init__(self) -> None:
        if not self.file.startswith(COMPANIONS):
            raise ValueError(f"{self.file} is not below {COMPANIONS}")

    @property
    def reach(self) -> Reach:
        """Nothing of any module."""
        return ()

    def _bytes(self, overlay: str) -> bytes:
        return f"{mark(overlay)}\n{self.text}".encode()

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether it is there."""
        match files.read(self.file):
            case None:
                return Finding(Found.BEFORE, regions=((),))
            case data if data == self._bytes(overlay):
                return Finding(Found.AFTER, marked=frozenset({()}), regions=((),))
        raise Lost("exists already, with other contents")

    def apply(self, files: Workspace, overlay: str) -> None:
        """Add it."""
        files.put(self.file, self._bytes(overlay))
