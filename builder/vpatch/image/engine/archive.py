"""Ask an engine what is in containers that are created and never started, all of one image.

Each question costs the engine a mount of the image (3 ms), and an archive a process besides (50 ms). One container
answers one question at a time.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING

import requests
from docker.errors import NotFound
from docker.utils import decode_json_header

from vpatch.errors import Failure, Problem
from vpatch.image.engine.client import naming
from vpatch.image.model import Kind
from vpatch.image.tar import Joined

if TYPE_CHECKING:
    from docker import DockerClient

CHUNK = 1 << 16
# How Go writes the type of a file beside its mode: package io/fs, FileMode.
_TYPES, _GO = 0x8F280000, {0: Kind.FILE, 1 << 31: Kind.FOLDER, 1 << 27: Kind.LINK}


class Archives:
    """The answers of some containers; any thread may ask."""

    def __init__(self, client: DockerClient, containers: Sequence[str]) -> None:
        self._client = client
        self._free: SimpleQueue[str] = SimpleQueue()
        for container in containers:
            self._free.put(container)

    def kind(self, path: str) -> Kind | None:
        """Say of what kind the entry at `path` is, None where nothing is.

        Raises:
            Failure: the engine refuses.
        """
        with self._container() as container, naming("cannot read", f"/{path}"):
            url = f"{self._client.api.base_url}/v{self._client.api.api_version}/containers/{container}/archive"
            answer = self._client.api.head(url, params={"path": f"/{path}"}, timeout=self._client.api.timeout)
            if answer.status_code == requests.codes.not_found:
                self._client.api.inspect_container(container)  # raises where it is the container that is gone
                return None
            answer.raise_for_status()
            return _GO.get(
                decode_json_header(answer.headers["X-Docker-Container-Path-Stat"])["mode"] & _TYPES, Kind.OTHER
            )

    @contextmanager
    def open(self, path: str) -> Iterator[tarfile.TarFile | None]:
        """Give the archive of what is at `path`, to be read from its beginning; None where nothing is.

        Raises:
            Failure: the engine refuses, or what it sends is no archive.
        """
        with self._container() as container, naming("cannot read", f"/{path}"):
            try:
                blocks, _ = self._client.api.get_archive(container, f"/{path}", chunk_size=CHUNK)
            except NotFound:
                self._client.api.inspect_container(container)
                yield None
                return
            try:
                with tarfile.open(fileobj=Joined(blocks), mode="r|") as archive:
                    yield archive
            except tarfile.TarError as error:
                raise Failure(Problem("cannot read", f"/{path}", f"the engine sent no archive: {error}")) from error
            finally:
                blocks.close()

    @contextmanager
    def _container(self) -> Iterator[str]:
        container = self._free.get()
        try:
            yield container
        finally:
            self._free.put(container)
