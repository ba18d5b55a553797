"""The patch files that a user or a project names, beside the overlays of packages.

The command line sets them once, for all of a command; `vpatch.core.catalogue.discover` is what asks for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from vpatch.manifest import sha256


@dataclass(frozen=True)
class PatchBytes:
    """A patch file that no package ships, as it was read.

    Attributes:
        path: where it is, for people.
        data: its bytes.
        calls: the bytes of the list of what its code takes from vLLM; None if there is no list.
    """

    path: str
    data: bytes
    calls: bytes | None = None


@dataclass(frozen=True)
class Sources:
    """Patch files, and what a project's file expects of all overlays.

    Attributes:
        patches: the patch files.
        file: the project's file, for people; "" without one.
        required: the sha256 that a patch file must have, by id.
        named: the ids that the project's file selects, by the key that has them.
    """

    patches: tuple[PatchBytes, ...] = ()
    file: str = ""
    required: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """The hash of everything that a result may depend on; the same for the same bytes at the same paths."""
        patches = [[one.path, sha256(one.data), sha256(one.calls or b"")] for one in self.patches]
        return sha256(json.dumps([patches, sorted(self.required.items()), sorted(self.named.items())]).encode())


_current: ContextVar[Sources] = ContextVar("vpatch_sources", default=Sources())  # noqa: B039 - it is frozen


def current() -> Sources:
    """Return the sources of the command that runs."""
    return _current.get()


def inherit(sources: Sources) -> None:
    """Take overlays from `sources`, too, until this process ends."""
    _current.set(sources)


@contextmanager
def using(sources: Sources) -> Iterator[None]:
    """Take overlays from `sources`, too, during the block."""
    token = _current.set(sources)
    try:
        yield
    finally:
        _current.reset(token)
