"""Blobs brought into a repository by the cheapest way there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from urllib.parse import quote

import requests

from vpatch.errors import Failure
from vpatch.image.registry.descriptors import Descriptor, stream
from vpatch.image.registry.pulled import RemoteImage
from vpatch.image.registry.reference import Reference
from vpatch.image.registry.repository import RefusedError, Repository, persist
from vpatch.net.ranges import Progress


class Sender:
    """Brings blobs of `base`, and new ones, into the repository of `target`.

    `sent` bytes went there so far, and `mounted` blobs were there under another repository's name.
    """

    def __init__(self, base: RemoteImage, target: Reference, progress: Progress | None) -> None:
        self.repository = Repository(target, "cannot push")
        self.sent = self.mounted = 0
        self._base, self._progress = base, progress
        self._planned = 0

    def bring(self, blob: Descriptor) -> None:
        """Have a blob of the base there."""
        if not self._has(blob):
            persist(lambda: self._upload(blob, _Copy(self._base.repository, blob, self._hear), self._origin(blob)))

    def send(self, blob: Descriptor, data: bytes) -> None:
        """Have a new blob there."""
        if not self._has(blob):
            persist(lambda: self._upload(blob, data))
            self._hear(len(data))

    def _has(self, blob: Descriptor) -> bool:
        # A repository that is still to come may not let itself be read: what is sent there says if it can be.
        with suppress(RefusedError):
            answer = self.repository.ask("HEAD", f"blobs/{blob.digest}", expect=(200, 404))
            if answer.status_code == requests.codes.ok:
                return True
        self._planned += blob.size
        return False

    def _origin(self, blob: Descriptor) -> str:
        source = self._base.ref
        near = source.host == self.repository.ref.host
        return f"?mount={blob.digest}&from={quote(source.repository, safe='')}" if near else ""

    def _upload(self, blob: Descriptor, body: bytes | _Copy, mount: str = "") -> None:
        answer = self._begin(mount)
        if answer.status_code == requests.codes.created:
            self.mounted += 1
            self._planned -= blob.size
            return
        location = answer.headers.get("Location", "")
        joint = "&" if "?" in location else "?"
        headers = {"Content-Type": "application/octet-stream"}
        path = f"{location}{joint}digest={blob.digest}"
        self.repository.ask("PUT", path, expect=(201,), data=body, headers=headers, missing="its upload is gone")

    def _begin(self, mount: str) -> requests.Response:
        start, missing = "blobs/uploads/", "no such repository"
        if mount:
            # Who may not read there, or a registry that cannot do it: then the blob is sent.
            with suppress(Failure):
                return self.repository.ask("POST", f"{start}{mount}", expect=(201, 202), missing=missing)
        return self.repository.ask("POST", start, expect=(202,), missing=missing)

    def _hear(self, count: int) -> None:
        self.sent += count
        if self._progress:
            self._progress(self.sent, max(self._planned, self.sent))


class _Copy:
    """A blob of another repository as a body: read, and checked, while it is sent."""

    def __init__(self, source: Repository, blob: Descriptor, heard: Callable[[int], object]) -> None:
        self._source, self._blob, self._heard = source, blob, heard

    def __len__(self) -> int:
        return self._blob.size

    def __iter__(self) -> Iterator[bytes]:
        with closing(stream(self._source, self._blob, self._heard)) as blocks:
            yield from blocks
