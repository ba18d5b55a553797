"""Build an image in a registry, without an engine: read, compute, push by digest, test, tag; in that order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import quote

import requests

from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.errors import Failure
from vpatch.image import Phase, Watch, checks
from vpatch.image.checks import Check, check_names, failed
from vpatch.image.config import Base, build_labels, digest_of, extend_config, serialize
from vpatch.image.order import Built, Order, prepare
from vpatch.image.patch import Layer, label_of
from vpatch.image.registry.image import NEW_LAYER, OCI, RemoteImage, find_image, open_image, read_manifest
from vpatch.image.registry.layers import LayeredFiles, is_wanted, open_vllm
from vpatch.image.registry.reference import Reference, parse
from vpatch.image.registry.repository import Descriptor, ForbiddenError, Repository, read_blob, retry


def build(order: Order, overlays: Sequence[Catalogued], watch: Watch) -> Built:
    """Build an image in the repositories that its tags name, and set the tags last."""
    check_names(order.architectures)
    watch.phase(f"looking for {order.base}")
    image = find_image(parse(order.base), order.platform)
    reading = f"reading {order.base}"
    watch.phase(reading)
    keep = partial(is_wanted, compiled=bool(order.architectures))
    layers = LayeredFiles(image, keep, progress=partial(watch.phase, reading))
    vllm = open_vllm(layers, image.base, order.python)
    same = f"{image.ref.name}@{image.digest}"
    built = prepare(order, layers, vllm, image.base, Engine(overlays), same=same, watch=watch)
    read = {"bytes_read": layers.bytes_read, "layers_read": [one.digest for one in layers.layers_read]}
    built = replace(built, extra={**read, **built.extra})
    return _publish(order, built, image, built.layer, layers, watch) if built.layer else built


def _publish(order: Order, built: Built, image: RemoteImage, layer: Layer, layers: LayeredFiles, watch: Watch) -> Built:
    labels = build_labels(image.base, image.ref.full, layer.provenance, order.labels)
    settings = extend_config(image.base, layer.diff_id, labels)
    targets = [parse(name) for name in order.tags]
    sent, names = 0, []
    tests: list[Check] = []
    for target in {one.name: one for one in targets}.values():
        digest, size = push(image, target, layer, settings, labels, watch.phase)
        sent += size
        names.append(f"{target.name}@{digest}")
        if order.tests:
            watch.phase(f"testing: files of {target.name}")
            # Test what is in the registry now; layers of the base that were read need not be read again.
            new = open_image(Reference(target.host, target.repository, digest=digest), order.platform)
            files = LayeredFiles(new, is_wanted, known=layers.views)
            open_vllm(files, new.base, order.python)
            tests += checks.check_files(files, label_of(Base(order.base, "", settings)), discover())
    done = replace(built, tests=tuple(dict.fromkeys(tests)), extra={**built.extra, "bytes_sent": sent})
    if failed(tests):
        return replace(done, pushed=names[0])
    try:
        for target in targets if order.set_tags else ():
            watch.phase(f"tagging {target}")
            tag(target, names[0].rpartition("@")[2], str(target.tag))
    except Failure as failure:
        return replace(done, pushed=names[0], problems=failure.problems)
    return replace(done, image=names[0])


def push(
    base: RemoteImage,
    target: Reference,
    layer: Layer,
    config: Mapping[str, Any],
    annotations: Mapping[str, str],
    phase: Phase,
) -> tuple[str, int]:
    """Push `base` with one more layer and a new configuration into the repository of `target`, without a tag.

    Returns:
        The digest of the new image, and the bytes of blobs that were sent.
    """
    uploader = _Uploader(base, target)
    kind = base.manifest.media_type
    settings = serialize(config)
    pointer = Descriptor(str(base.manifest.body["config"]["mediaType"]), digest_of(settings), len(settings))
    added = Descriptor(NEW_LAYER[kind], layer.digest, len(layer.blob))
    layers = [*base.manifest.body["layers"], added.json]
    manifest: dict[str, Any] = {"schemaVersion": 2, "mediaType": kind, "config": pointer.json, "layers": layers}
    if kind == OCI:  # Docker's has none
        manifest["annotations"] = {**(base.manifest.body.get("annotations") or {}), **annotations}
    raw = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False).encode()
    digest = digest_of(raw)
    blobs = [*dict.fromkeys(base.layers)]
    copied, size = 0, sum(blob.size for blob in blobs)

    def advance(before: int, done: int) -> None:
        phase(f"pushing to {target.name}", before + done, size)

    for blob in blobs:
        uploader.copy(blob, partial(advance, copied))
        copied += blob.size
    phase(f"pushing to {target.name}")
    uploader.upload(added, layer.blob)
    uploader.upload(pointer, settings)
    _put_manifest(uploader.repository, digest, raw, kind)
    read_manifest(uploader.repository, digest)  # fails unless it is what was sent
    return digest, uploader.sent


def tag(target: Reference, digest: str, name: str) -> None:
    """Tag the manifest `digest` as `name`. If this fails, the tag is unchanged, or only the answer was lost."""
    repository = Repository(target, "cannot tag")
    manifest = read_manifest(repository, digest)
    _put_manifest(repository, name, manifest.raw, manifest.media_type)


def _put_manifest(repository: Repository, name: str, raw: bytes, kind: str) -> None:
    options: dict[str, Any] = {"expect": (200, 201), "data": raw, "headers": {"Content-Type": kind}}
    retry(lambda: repository.ask("PUT", f"manifests/{name}", **options).close())


class _Uploader:
    """Brings missing blobs into the repository of `target`; layers are mounted within one registry, else copied."""

    def __init__(self, base: RemoteImage, target: Reference) -> None:
        self.repository, self.sent = Repository(target, "cannot push"), 0
        self._base = base

    def copy(self, blob: Descriptor, advance: Callable[[int], object]) -> None:
        """Bring a layer of the base; `advance` is called with the bytes of it that are there."""
        advance(0)
        if not self._exists(blob):
            source = self._base.ref
            near = source.host == self.repository.ref.host
            mount = f"?mount={blob.digest}&from={quote(source.repository, safe='')}" if near else ""
            retry(lambda: self._send(blob, _Copy(self._base.repository, blob, self._count, advance), mount))

    def upload(self, blob: Descriptor, data: bytes) -> None:
        """Bring a new blob."""
        if not self._exists(blob):
            retry(lambda: self._send(blob, data))
            self._count(len(data))

    def _exists(self, blob: Descriptor) -> bool:
        # A repository that does not exist yet may be unreadable: the upload shows whether the user may write.
        with suppress(ForbiddenError):
            return self.repository.ask("HEAD", f"blobs/{blob.digest}", expect=(200, 404)).ok
        return False

    def _send(self, blob: Descriptor, body: bytes | _Copy, mount: str = "") -> None:
        answer = self._start(mount)
        if answer.status_code == requests.codes.created:  # it was mounted
            return
        location = answer.headers.get("Location", "")
        path = f"{location}{'&' if '?' in location else '?'}digest={blob.digest}"
        headers = {"Content-Type": "application/octet-stream"}
        self.repository.ask("PUT", path, expect=(201,), data=body, headers=headers, missing="its upload is gone")

    def _start(self, mount: str) -> requests.Response:
        path, missing = "blobs/uploads/", "no such repository"
        if mount:
            # If the user may not read there, or the registry cannot mount, the blob is sent.
            with suppress(Failure):
                return self.repository.ask("POST", f"{path}{mount}", expect=(201, 202), missing=missing)
        return self.repository.ask("POST", path, expect=(202,), missing=missing)

    def _count(self, size: int) -> None:
        self.sent += size


@dataclass
class _Copy:
    """A blob of another repository as a request's body: read, and checked, while it is sent."""

    source: Repository
    blob: Descriptor
    count: Callable[[int], object]  # called with the size of each piece
    advance: Callable[[int], object]  # called with the bytes sent so far

    def __len__(self) -> int:
        return self.blob.size

    def __iter__(self) -> Iterator[bytes]:
        sent = 0
        with closing(read_blob(self.source, self.blob, self.count)) as blocks:
            for block in blocks:
                yield block
                sent += len(block)
                self.advance(sent)
