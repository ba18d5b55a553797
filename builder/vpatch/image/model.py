"""The words of images as values. Paths inside an image are POSIX and relative to its root: `usr/bin/python3`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import IO, Any, Protocol


class Kind(Enum):
    """What an entry of an image's file system is."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "symbolic link"
    OTHER = "special file"


@dataclass(frozen=True)
class Entry:
    """One file, folder or link of an image.

    `mode` are the permission bits, `mtime` is in seconds since the epoch, `size` in bytes, `target` is where a link
    leads, as it is written in it.
    """

    path: str
    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0
    target: str = ""


class Files(Protocol):
    """The file system of an image, as a container of it would see it. No link is followed."""

    def entry(self, path: str) -> Entry | None:
        """Say what is at `path`, None where nothing is.

        Raises:
            Failure: it cannot be told.
        """
        ...

    def kind(self, path: str) -> Kind | None:
        """Say of what kind the entry at `path` is, None where nothing is; this may cost much less than `entry`.

        Raises:
            Failure: it cannot be told.
        """
        ...

    def read(self, path: str) -> bytes | None:
        """Give a file's bytes, None where there is no file.

        Raises:
            Failure: it cannot be read, or is no plain file.
        """
        ...

    def open(self, path: str) -> IO[bytes] | None:
        """Give a file too large to be read at once, to be closed; None where there is no file.

        Raises:
            Failure: it cannot be read, or is no plain file.
        """
        ...

    def names(self, folder: str) -> tuple[str, ...]:
        """Give the names in a folder, sorted; none where there is no folder.

        Raises:
            Failure: they cannot be told.
        """
        ...


@dataclass(frozen=True)
class Base:
    """An image to build on.

    `id` is the digest of its configuration. `config` is that, as the OCI image specification has it: `architecture`,
    `os`, `config` (`Env`, `Labels`, ...), `rootfs`, `history`. `digest` is that of its manifest, empty for an image
    that was made in the engine and came from no registry.
    """

    ref: str
    id: str
    config: Mapping[str, Any]
    digest: str = ""

    @property
    def env(self) -> dict[str, str]:
        """The environment that a container of it has."""
        pairs = (self.config.get("config") or {}).get("Env") or ()
        return dict(pair.partition("=")[::2] for pair in pairs)

    @property
    def workdir(self) -> str:
        """The folder in which a container of it starts, empty where it does not say."""
        return str((self.config.get("config") or {}).get("WorkingDir") or "")

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels that it has."""
        return (self.config.get("config") or {}).get("Labels") or {}


@dataclass(frozen=True)
class Layer:
    """One new layer. `blob` is its tar, compressed with gzip; digests are `sha256:<hex>`.

    `diff_id` is the digest of the tar itself, and the same wherever it is made; `files` are the paths, sorted, that it
    holds, and `removed` those that it takes away.
    """

    blob: bytes = field(repr=False)
    digest: str
    diff_id: str
    files: tuple[str, ...]
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tested:
    """The outcome of one test of an image: `ok` is None where it was not run, and `because` says why."""

    name: str
    ok: bool | None
    because: str
