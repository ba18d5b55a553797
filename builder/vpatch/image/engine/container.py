"""The files of an image, read out of containers that are created and never started."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import PurePosixPath
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

from vpatch.errors import Failure, Problem
from vpatch.errors import naming as naming_disk
from vpatch.image import limits
from vpatch.image.engine.archive import CHUNK, Archives
from vpatch.image.engine.containers import container
from vpatch.image.model import Entry, Kind
from vpatch.image.tar import kind_of

if TYPE_CHECKING:
    from docker import DockerClient

_AT_ONCE = 3  # containers: more cost more than they gain


@contextmanager
def files_of(client: DockerClient, image: str, owner: str) -> Iterator[ContainerFiles]:
    """Give the files of an image; `owner` is the run that its containers belong to.

    Raises:
        Failure: the engine refuses.
    """
    with ExitStack() as stack:
        made = [stack.enter_context(container(client, image, owner, ["true"], [])) for _ in range(_AT_ONCE)]
        pool = ThreadPoolExecutor(_AT_ONCE)
        stack.callback(pool.shutdown, cancel_futures=True)
        yield ContainerFiles(Archives(client, made), pool)


class ContainerFiles:
    """The files of an image; what was asked once is kept. Implements `vpatch.image.model.Files`."""

    def __init__(self, archives: Archives, pool: ThreadPoolExecutor) -> None:
        self._archives, self._pool = archives, pool
        self._entries: dict[str, Entry | None] = {}
        self._kinds: dict[str, Kind | None] = {}
        self._contents: dict[str, bytes | None] = {}
        self._coming: dict[str, Future[Any]] = {}

    def expect(self, files: Iterable[str]) -> None:
        """Begin to read files, and to look at the folders above them; whoever asks for one waits for it."""
        files = dict.fromkeys(files)
        for path in files:
            self._coming[path] = self._pool.submit(self._read, path)
        for path in dict.fromkeys(str(above) for file in files for above in [*PurePosixPath(file).parents][:-1]):
            self._coming[path] = self._pool.submit(self._entry, path)

    def entry(self, path: str) -> Entry | None:
        """Say what is at `path`, by the first header of its archive: the engine's own short answer has no owner."""
        self._wait(path)
        return self._entry(path)

    def kind(self, path: str) -> Kind | None:
        """Say of what kind the entry at `path` is, by the engine's short answer."""
        if path in self._entries:
            here = self._entries[path]
            return here.kind if here else None
        if path not in self._kinds:
            self._kinds[path] = None if self._is_below_nothing(path) else self._archives.kind(path)
        return self._kinds[path]

    def read(self, path: str) -> bytes | None:
        """Give a file's bytes."""
        self._wait(path)
        return self._read(path)

    def open(self, path: str) -> IO[bytes] | None:
        """Give a file, by way of a temporary one."""
        with self._archives.open(path) as archive:
            if archive is None:
                return None
            source = self._only(path, archive, limits.FILE)
            copy = TemporaryFile()  # noqa: SIM115 - the caller closes it
            with naming_disk("cannot write", "temporary file"):
                shutil.copyfileobj(source, copy, CHUNK)
            copy.seek(0)
            return copy

    def names(self, folder: str) -> tuple[str, ...]:
        """Give the names in a folder, for which the engine sends all that is below it."""
        at = PurePosixPath(folder).name
        with self._archives.open(folder) as archive:
            members = () if archive is None else (PurePosixPath(member.name) for member in archive)
            return tuple(sorted(m.name for m in members if len(m.parts) == 2 and m.parts[0] == at))

    def _wait(self, path: str) -> None:
        if path in self._coming:
            self._coming.pop(path).result()

    def _entry(self, path: str) -> Entry | None:
        if path not in self._entries:
            first = None
            if not self._is_below_nothing(path):
                with self._archives.open(path) as archive:
                    first = None if archive is None else archive.next()
            self._entries[path] = None if first is None else _entry(path, first)
        return self._entries[path]

    def _read(self, path: str) -> bytes | None:
        if path not in self._contents:
            content = None
            if not self._is_below_nothing(path):
                with self._archives.open(path) as archive:
                    content = None if archive is None else self._only(path, archive, limits.SOURCE).read()
            if content is None:
                self._entries[path] = None
            self._contents[path] = content
        return self._contents[path]

    def _is_below_nothing(self, path: str) -> bool:
        """Whether a folder above is known not to be there."""
        above = [str(folder) for folder in PurePosixPath(path).parents]
        return any(known.get(folder, self) is None for known in (self._entries, self._kinds) for folder in above)

    def _only(self, path: str, archive: tarfile.TarFile, most: int) -> IO[bytes]:
        member = archive.next()
        if member is None or member.name != PurePosixPath(path).name or not member.isreg():
            kind = "nothing" if member is None else f"{member.name!r}, {kind_of(member).value}"
            raise Failure(Problem("not a plain file", f"/{path}", f"the image has {kind} there"))
        if member.size > most:
            cause = f"it has {member.size:,} bytes, and may have {limits.size(most)}"
            raise Failure(Problem("too large", f"/{path}", cause))
        self._entries[path] = _entry(path, member)
        return archive.extractfile(member) or BytesIO()


def _entry(path: str, member: tarfile.TarInfo) -> Entry:
    owner = (member.uid, member.gid)
    mode = member.mode & 0o7777  # the engine writes the type beside it
    return Entry(path, kind_of(member), mode, *owner, int(member.mtime), member.size, member.linkname)
