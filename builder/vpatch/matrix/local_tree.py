"""A vLLM in a folder."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from vpatch.matrix.verdicts import Tree
from vpatch.tree.locate import locate


@dataclass(frozen=True)
class Folder:
    """A site-packages folder, a virtual environment, an interpreter, or a source checkout."""

    path: Path

    @property
    def name(self) -> str:
        """Its path, as it was given."""
        return str(self.path)

    def read(self, files: Collection[str]) -> Tree:
        """Read these files.

        Raises:
            Failure: there is no vLLM, or more than one; or a file cannot be read.
        """
        site = locate(self.path)
        found = {name: data for name in files if (data := site.read(name)) is not None}
        return Tree(found, site.version, str(site.root))
