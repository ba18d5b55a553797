"""The files of an image, read out of a container that is created and never started."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO, RawIOBase
from pathlib import PurePosixPath
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

from docker.errors import NotFound

from vpatch.errors import Failure, Problem
from vpatch.image.engine.client import naming
from vpatch.image.model import Entry, Kind

if TYPE_CHECKING:
    from docker import DockerClient

_CHUNK = 1 << 16
_KINDS = {tarfile.REGTYPE: Kind.FILE, tarfile.DIRTYPE: Kind.FOLDER, tarfile.SYMTYPE: Kind.LINK}


class ContainerFiles:
    """The files of one container; what was asked once is kept. Implements `vpatch.image.model.Files`."""

    def __init__(self, client: DockerClient, container: str) -> None:
        self._client, self._container = client, container
        self._entries: dict[str, Entry | None] = {}
        self._contents: dict[str, bytes | None] = {}

    def entry(self, path: str) -> Entry | None:
        """Say what is at `path`, by the first header of its archive: the engine's own short answer has no owner."""
        if path not in self._entries:
            first = None
            if not self._is_below_nothing(path):
                with self._archive(path) as archive:
                    first = None if archive is None else archive.next()
            self._entries[path] = None if first is None else _entry(path, first)
        return self._entries[path]

    def read(self, path: str) -> bytes | None:
        """Give a file's bytes."""
        if path not in self._contents:
            self._contents[path] = None
            if not self._is_below_nothing(path):
                with self._archive(path) as archive:
                    self._contents[path] = None if archive is None else self._only(path, archive).read()
            if self._contents[path] is None:
                self.entry(str(PurePosixPath(path).parent))
        return self._contents[path]

    def open(self, path: str) -> IO[bytes] | None:
        """Give a file, by way of a temporary one."""
        with self._archive(path) as archive:
            if archive is None:
                return None
            source = self._only(path, archive)
            copy = TemporaryFile()  # noqa: SIM115 - the caller closes it
            shutil.copyfileobj(source, copy, _CHUNK)
            copy.seek(0)
            return copy

    def names(self, folder: str) -> tuple[str, ...]:
        """Give the names in a folder, for which the engine sends all that is below it."""
        at = PurePosixPath(folder).name
        with self._archive(folder) as archive:
            members = () if archive is None else (PurePosixPath(member.name) for member in archive)
            return tuple(sorted(m.name for m in members if len(m.parts) == 2 and m.parts[0] == at))

    def _is_below_nothing(self, path: str) -> bool:
        """Whether a folder above is known not to be there: each question costs the engine a mount."""
        return any(self._entries.get(str(above), self) is None for above in PurePosixPath(path).parents)

    def _only(self, path: str, archive: tarfile.TarFile) -> IO[bytes]:
        member = archive.next()
        if member is None or member.name != PurePosixPath(path).name or not member.isreg():
            kind = "nothing" if member is None else f"{member.name!r}, {_kind(member).value}"
            raise Failure(Problem("not a plain file", f"/{path}", f"the image has {kind} there"))
        self._entries[path] = _entry(path, member)
        return archive.extractfile(member) or BytesIO()

    @contextmanager
    def _archive(self, path: str) -> Iterator[tarfile.TarFile | None]:
        with naming("cannot read", f"/{path}"):
            try:
                blocks, _ = self._client.api.get_archive(self._container, f"/{path}", chunk_size=_CHUNK)
            except NotFound:
                yield None
                return
            try:
                with tarfile.open(fileobj=Stream(blocks), mode="r|") as archive:
                    yield archive
            except tarfile.TarError as error:
                raise Failure(Problem("cannot read", f"/{path}", f"the engine sent no archive: {error}")) from error
            finally:
                blocks.close()


class Stream(RawIOBase):
    """Blocks of bytes, read as a file."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks, self._rest = iter(blocks), b""

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer."""
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = block
        taken, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


def _kind(member: tarfile.TarInfo) -> Kind:
    return _KINDS.get(member.type, Kind.OTHER)


def _entry(path: str, member: tarfile.TarInfo) -> Entry:
    owner = (member.uid, member.gid)
    return Entry(path, _kind(member), member.mode, *owner, int(member.mtime), member.size, member.linkname)
