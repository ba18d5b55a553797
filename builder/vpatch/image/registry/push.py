"""A new image made in a registry out of a base and one layer: nothing of the base is unpacked, the tag comes last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vpatch.image.config import serialise
from vpatch.image.layer import digest_of
from vpatch.image.model import Layer
from vpatch.image.registry.descriptors import NEW_LAYER, OCI, Descriptor
from vpatch.image.registry.manifests import read_manifest
from vpatch.image.registry.pulled import RemoteImage
from vpatch.image.registry.reference import Reference
from vpatch.image.registry.repository import Repository, persist
from vpatch.image.registry.sender import Sender
from vpatch.net.ranges import Progress


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
    sender = Sender(base, target, progress)
    kind = base.manifest.media_type
    settings = serialise(config)
    pointer = Descriptor(str(base.manifest.body["config"]["mediaType"]), digest_of(settings), len(settings))
    added = Descriptor(NEW_LAYER[kind], layer.digest, len(layer.blob))
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
    for blob in dict.fromkeys(base.layers):
        sender.bring(blob)
    sender.send(added, layer.blob)
    sender.send(pointer, settings)
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
