"""The files of an image in an engine, read from containers that are never started.

Each question costs the engine a mount of the image (3 ms), and an archive also a process (50 ms).
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
from vpatch.image.engine import engine_errors
from vpatch.image.engine.containers import container
from vpatch.image.filesystem import BlockReader, Entry, Files, Kind, Limits, entry_of
from vpatch.net import size

_CHUNK = 1 << 16
_READERS = 3  # containers that answer one question at a time; more cost more than they gain
# A file's type in its mode as Go writes it: package io/fs, FileMode.
_GO_TYPES, _GO_KINDS = 0x8F280000, {0: Kind.FILE, 1 << 31: Kind.FOLDER, 1 << 27: Kind.LINK}


@contextmanager
def open_files(client: DockerClient, image: str, owner: str) -> Iterator[ContainerFiles]:
    """Yield the files of an image; `owner` is the run that its containers belong to."""
    with ExitStack() as stack:
        made = [stack.enter_context(container(client, image, owner, ["true"])) for _ in range(_READERS)]
        pool = ThreadPoolExecutor(_READERS)
        stack.callback(pool.shutdown, cancel_futures=True)
        yield ContainerFiles(client, made, pool)


class ContainerFiles(Files):
    """The files of an image; answers are cached."""

    def __init__(self, client: DockerClient, containers: Sequence[str], pool: ThreadPoolExecutor) -> None:
        self._client, self._pool = client, pool
        self._idle: SimpleQueue[str] = SimpleQueue()
        for name in containers:
            self._idle.put(name)
        self._entries: dict[str, Entry | None] = {}
        self._kinds: dict[str, Kind | None] = {}
        self._contents: dict[str, bytes | None] = {}
        self._coming: dict[str, Future[Any]] = {}

    def prefetch(self, files: Iterable[str]) -> None:
        """Start to read files and the entries of the folders above them; whoever asks for one waits for it."""
        files = dict.fromkeys(files)
        folders = dict.fromkeys(str(above) for file in files for above in [*PurePosixPath(file).parents][:-1])
        self._coming |= {path: self._pool.submit(self._read, path) for path in files}
        self._coming |= {path: self._pool.submit(self._entry, path) for path in folders}

    def entry(self, path: str) -> Entry | None:
        """Return the entry at `path`, from the first header of its archive: the engine's `HEAD` has no owner."""
        self._wait(path)
        return self._entry(path)

    def kind(self, path: str) -> Kind | None:
        """Return the type of the entry at `path`, from the engine's `HEAD`."""
        if path in self._entries:
            return here.kind if (here := self._entries[path]) else None
        if path not in self._kinds:
            self._kinds[path] = None if self._is_known_missing(path) else self._asked_kind(path)
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
            members = (PurePosixPath(member.name) for member in archive or ())
            return tuple(sorted(m.name for m in members if len(m.parts) == 2 and m.parts[0] == at))

    def _asked_kind(self, path: str) -> Kind | None:
        api = self._client.api
        with self._container(path) as container_id:
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
        """Yield the archive of the entry at `path`, to be read forward; None without an entry."""
        if self._is_known_missing(path):
            yield None
            return
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
            with self._archive(path) as archive:
                first = archive.next() if archive else None
            self._entries[path] = entry_of(path, first) if first else None
        return self._entries[path]

    def _read(self, path: str) -> bytes | None:
        if path not in self._contents:
            with self._archive(path) as archive:
                content = self._file(path, archive, Limits.SOURCE).read() if archive else None
            if content is None:
                self._entries[path] = None
            self._contents[path] = content
        return self._contents[path]

    def _is_known_missing(self, path: str) -> bool:
        above = [str(folder) for folder in PurePosixPath(path).parents]
        return any(known.get(folder, self) is None for known in (self._entries, self._kinds) for folder in above)

    def _file(self, path: str, archive: tarfile.TarFile, limit: int) -> IO[bytes]:
        member = archive.next()
        if member is None or member.name != PurePosixPath(path).name or not member.isreg():
            kind = "nothing" if member is None else f"{member.name!r}, {entry_of(path, member).kind.value}"
            raise Failure(Problem("not a plain file", f"/{path}", f"the image has {kind} there"))
        if member.size > limit:
            raise Failure(Problem("too large", f"/{path}", f"it has {member.size:,} bytes, and may have {size(limit)}"))
        self._entries[path] = entry_of(path, member)
        return archive.extractfile(member) or BytesIO()
