"""The files of an image, read from containers that are created and never started.

A question costs the engine a mount of the image (3 ms), and an archive also a process (50 ms). One container answers
one question at a time.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import PurePosixPath
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import IO, Any

import requests
from docker import DockerClient
from docker.errors import NotFound
from docker.utils import decode_json_header

from vpatch.errors import Failure, Problem, naming
from vpatch.image.engine.client import engine_errors
from vpatch.image.engine.containers import container
from vpatch.image.filesystem import BlockReader, Entry, Files, Kind, Limits, kind_of
from vpatch.net.error_text import size

_CHUNK = 1 << 16
_CONTAINERS = 3  # more cost more than they gain
# A file's type in its mode as Go writes it: package io/fs, FileMode.
_GO_TYPES, _GO_KINDS = 0x8F280000, {0: Kind.FILE, 1 << 31: Kind.FOLDER, 1 << 27: Kind.LINK}


@contextmanager
def open_files(client: DockerClient, image: str, owner: str) -> Iterator[ContainerFiles]:
    """Yield the files of an image; `owner` is the run that its containers belong to."""
    with ExitStack() as stack:
        made = [stack.enter_context(container(client, image, owner, ["true"])) for _ in range(_CONTAINERS)]
        pool = ThreadPoolExecutor(_CONTAINERS)
        stack.callback(pool.shutdown, cancel_futures=True)
        yield ContainerFiles(client, made, pool)


class ContainerFiles(Files):
    """The files of an image; answers are cached."""

    def __init__(self, client: DockerClient, containers: Sequence[str], pool: ThreadPoolExecutor) -> None:
        self._client, self._pool = client, pool
        self._idle: SimpleQueue[str] = SimpleQueue()
        for container_id in containers:
            self._idle.put(container_id)
        self._entries: dict[str, Entry | None] = {}
        self._kinds: dict[str, Kind | None] = {}
        self._contents: dict[str, bytes | None] = {}
        self._coming: dict[str, Future[Any]] = {}

    def prefetch(self, files: Iterable[str]) -> None:
        """Start to read files and the entries of the folders above them; whoever asks for one waits for it."""
        files = dict.fromkeys(files)
        for path in files:
            self._coming[path] = self._pool.submit(self._read, path)
        for path in dict.fromkeys(str(above) for file in files for above in [*PurePosixPath(file).parents][:-1]):
            self._coming[path] = self._pool.submit(self._entry, path)

    def entry(self, path: str) -> Entry | None:
        """Return the entry at `path`, from the first header of its archive: the engine's `HEAD` has no owner."""
        self._wait(path)
        return self._entry(path)

    def kind(self, path: str) -> Kind | None:
        """Return the type of the entry at `path`, from the engine's `HEAD`."""
        if path in self._entries:
            here = self._entries[path]
            return here.kind if here else None
        if path not in self._kinds:
            self._kinds[path] = None if self._is_known_missing(path) else self._ask_kind(path)
        return self._kinds[path]

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes."""
        self._wait(path)
        return self._read(path)

    def open(self, path: str) -> IO[bytes] | None:
        """Open a copy of a file in a temporary file."""
        with self._archive(path) as archive:
            if archive is None:
                return None
            source = self._file(path, archive, Limits.FILE)
            copy = TemporaryFile()  # noqa: SIM115 - the caller closes it
            with naming("cannot write", "temporary file"):
                shutil.copyfileobj(source, copy, _CHUNK)
            copy.seek(0)
            return copy

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names in a folder; the engine sends everything below it."""
        at = PurePosixPath(folder).name
        with self._archive(folder) as archive:
            members = () if archive is None else (PurePosixPath(member.name) for member in archive)
            return tuple(sorted(m.name for m in members if len(m.parts) == 2 and m.parts[0] == at))

    def _ask_kind(self, path: str) -> Kind | None:
        with self._container(path) as container_id:
            api = self._client.api
            url = f"{api.base_url}/v{api.api_version}/containers/{container_id}/archive"
            answer = api.head(url, params={"path": f"/{path}"}, timeout=api.timeout)
            if answer.status_code == requests.codes.not_found:
                api.inspect_container(container_id)  # raises if the container itself is gone
                return None
            answer.raise_for_status()
            mode = decode_json_header(answer.headers["X-Docker-Container-Path-Stat"])["mode"]
            return _GO_KINDS.get(mode & _GO_TYPES, Kind.OTHER)

    @contextmanager
    def _archive(self, path: str) -> Iterator[tarfile.TarFile | None]:
        """Yield the archive of the entry at `path`, to be read forward; None if there is no entry."""
        with self._container(path) as container_id:
            try:
                blocks, _ = self._client.api.get_archive(container_id, f"/{path}", chunk_size=_CHUNK)
            except NotFound:
                self._client.api.inspect_container(container_id)
                yield None
                return
            try:
                with tarfile.open(fileobj=BlockReader(blocks), mode="r|") as archive:
                    yield archive
            except tarfile.TarError as error:
                raise Failure(Problem("cannot read", f"/{path}", f"the engine sent no archive: {error}")) from error
            finally:
                blocks.close()

    @contextmanager
    def _container(self, path: str) -> Iterator[str]:
        container_id = self._idle.get()
        try:
            with engine_errors("cannot read", f"/{path}"):
                yield container_id
        finally:
            self._idle.put(container_id)

    def _wait(self, path: str) -> None:
        if path in self._coming:
            self._coming.pop(path).result()

    def _entry(self, path: str) -> Entry | None:
        if path not in self._entries:
            first = None
            if not self._is_known_missing(path):
                with self._archive(path) as archive:
                    first = None if archive is None else archive.next()
            self._entries[path] = None if first is None else _entry(path, first)
        return self._entries[path]

    def _read(self, path: str) -> bytes | None:
        if path not in self._contents:
            content = None
            if not self._is_known_missing(path):
                with self._archive(path) as archive:
                    content = None if archive is None else self._file(path, archive, Limits.SOURCE).read()
            if content is None:
                self._entries[path] = None
            self._contents[path] = content
        return self._contents[path]

    def _is_known_missing(self, path: str) -> bool:
        """Whether a folder above is known not to exist."""
        above = [str(folder) for folder in PurePosixPath(path).parents]
        return any(known.get(folder, self) is None for known in (self._entries, self._kinds) for folder in above)

    def _file(self, path: str, archive: tarfile.TarFile, limit: int) -> IO[bytes]:
        member = archive.next()
        if member is None or member.name != PurePosixPath(path).name or not member.isreg():
            kind = "nothing" if member is None else f"{member.name!r}, {kind_of(member).value}"
            raise Failure(Problem("not a plain file", f"/{path}", f"the image has {kind} there"))
        if member.size > limit:
            cause = f"it has {member.size:,} bytes, and may have {size(limit)}"
            raise Failure(Problem("too large", f"/{path}", cause))
        self._entries[path] = _entry(path, member)
        return archive.extractfile(member) or BytesIO()


def _entry(path: str, member: tarfile.TarInfo) -> Entry:
    mode = member.mode & 0o7777  # the engine sets type bits too
    owner = (member.uid, member.gid)
    return Entry(path, kind_of(member), mode, *owner, int(member.mtime), member.size, member.linkname)
