"""A new image made in a registry out of a base and one layer: nothing of the base is unpacked, the tag comes last."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import requests

from vpatch.errors import Failure
from vpatch.image.model import Layer
from vpatch.image.registry.descriptors import NEW_LAYER, OCI, Descriptor, digest_of, stream
from vpatch.image.registry.pulled import RemoteImage, read_manifest
from vpatch.image.registry.reference import Reference
from vpatch.image.registry.repository import RefusedError, Repository, persist
from vpatch.release.transfer import Progress


@dataclass(frozen=True)
class Pushed:
    """An image that is in its registry under its digest; `sent` bytes of blobs went there, `mounted` blobs did not."""

    digest: str
    sent: int
    mounted: int


def push(
    base: RemoteImage,
    target: Reference,
    layer: Layer,
    config: Mapping[str, Any],
    annotations: Mapping[str, str],
    *,
    progress: Progress | None = None,
) -> Pushed:
    """Put `base` with one layer more and another configuration into the repository of `target`, under no tag.

    What is there is not sent; the base's layers are mounted where they are in the same registry, else copied.
    `annotations` come to the base's own where its manifest is OCI's; Docker's has none.

    Raises:
        Failure: a registry fails or refuses, or gives back something else.
    """
    sender = _Sender(base, target, progress)
    kind = base.manifest.media_type
    settings = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    pointer = Descriptor(str(base.manifest.body["config"]["mediaType"]), digest_of(settings), len(settings))
    added = Descriptor(NEW_LAYER[kind], layer.digest, len(layer.blob))
    for blob in dict.fromkeys(base.layers):
        sender.bring(blob)
    sender.send(added, layer.blob)
    sender.send(pointer, settings)
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": kind,
        "config": pointer.json,
        "layers": [*base.manifest.body["layers"], added.json],
    }
    if kind == OCI:
        manifest["annotations"] = {**(base.manifest.body.get("annotations") or {}), **annotations}
    raw = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False).encode()
    digest = digest_of(raw)
    _put(sender.repository, digest, raw, kind)
    read_manifest(sender.repository, digest)  # is what was put there, or has another digest
    return Pushed(digest, sender.sent, sender.mounted)


def tag(target: Reference, digest: str, name: str) -> None:
    """Give the manifest `digest`, which is in the repository of `target`, the tag `name`.

    Nothing is asked afterwards: where it fails, the tag is as it was, unless the registry's very answer was lost.

    Raises:
        Failure: it is not there, or the registry fails or refuses.
    """
    repository = Repository(target, "cannot tag")
    manifest = read_manifest(repository, digest)
    _put(repository, name, manifest.raw, manifest.media_type)


def _put(repository: Repository, name: str, raw: bytes, kind: str) -> None:
    headers = {"Content-Type": kind}
    path = f"manifests/{name}"
    persist(lambda: repository.ask("PUT", path, expect=(200, 201), data=raw, headers=headers).close())


class _Sender:
    """Brings blobs into one repository."""

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
