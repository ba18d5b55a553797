"""Where changed files are kept: a site-packages tree, a source checkout. `apply` and `revert` know only this."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vpatch.core.marks import marks_in
from vpatch.tree import writer
from vpatch.tree.tree import Site


class Readable(Protocol):
    """One vLLM; see `vpatch.tree.tree.Site`, which is one on disk."""

    @property
    def root(self) -> Path:
        """The folder that holds `vllm/`, or whatever names this vLLM in messages."""
        ...

    @property
    def version(self) -> str | None:
        """Its version, for people."""
        ...

    def read(self, path: str) -> bytes | None:
        """Give the bytes of a file, None where there is none."""
        ...


class Store(Protocol):
    """One vLLM, and what it held before.

    `desired` is always the exact bytes of every file that the overlays change or add, whether they are on disk
    already or not; whatever else vpatch once changed is to be pristine. `note` is JSON-able and kept beside it, for
    people.
    """

    @property
    def site(self) -> Readable:
        """The tree."""
        ...

    def originals(self) -> Mapping[str, bytes | None]:
        """Give the pristine bytes of every file that vpatch changed, None where there was no file."""
        ...

    def settled(self, desired: Mapping[str, bytes], note: object) -> bool:
        """Tell whether everything is as `desired` already. Writes nothing and takes no lock."""
        ...

    def lock(self) -> AbstractContextManager[None]:
        """Keep other runs of vpatch away."""
        ...

    def settle(self, desired: Mapping[str, bytes], note: object, *, on_edits: bool) -> tuple[str, ...]:
        """Write; give the paths that changed.

        `on_edits` says that `desired` was computed from the files as they are, so that what somebody else changed in
        them is still in there.

        Raises:
            Failure: it cannot be written, or would destroy what somebody else changed.
        """
        ...


def is_pristine(_path: str, content: bytes) -> bool:
    """Tell whether a file's bytes carry no mark, and so can be an original."""
    return not marks_in(content)


@dataclass(frozen=True)
class SitePackages:
    """An installed vLLM; see `vpatch.tree.writer` for what is promised."""

    site: Site

    def originals(self) -> Mapping[str, bytes | None]:
        """Take them from the dist-info."""
        return writer.originals(self.site)

    def settled(self, desired: Mapping[str, bytes], note: object) -> bool:
        """Compare files, RECORD, originals and bytecode."""
        return writer.settled(self.site, desired, note)

    def lock(self) -> AbstractContextManager[None]:
        """Lock the dist-info."""
        return writer.lock(self.site)

    def settle(self, desired: Mapping[str, bytes], note: object, *, on_edits: bool) -> tuple[str, ...]:
        """Stage, then rename one by one, RECORD last."""
        return writer.settle(self.site, desired, note, pristine=is_pristine, allow_edited=on_edits)
