"""An image as a registry has it: its manifest and its configuration, each checked against its digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vpatch.image import limits
from vpatch.image.model import Base
from vpatch.image.registry.descriptors import (
    CONFIGS,
    DOCKER,
    INDEXES,
    LAYERS,
    OCI,
    Descriptor,
    read_descriptor,
    stream,
)
from vpatch.image.registry.manifests import LARGEST, Manifest, read_manifest, read_object
from vpatch.image.registry.reference import Reference
from vpatch.image.registry.repository import Repository, persist
from vpatch.image.shapes import CONFIG, MANIFEST, hold


@dataclass(frozen=True)
class RemoteImage:
    """An image of one platform in a registry.

    `ref` names it as asked for; `index` is the digest of the index that it was found in, empty where there is none.
    `layers` begin with the lowest, and `diff_ids` are the digests of their tars.
    """

    ref: Reference
    repository: Repository = field(repr=False)
    index: str
    manifest: Manifest
    config: Mapping[str, Any] = field(repr=False)
    layers: tuple[Descriptor, ...]
    diff_ids: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The digest of its manifest, which names it and no other platform's."""
        return self.manifest.digest

    @property
    def base(self) -> Base:
        """It as an image to build on."""
        return Base(str(self.ref), str(self.manifest.body["config"]["digest"]), self.config, self.digest)


def open_image(ref: Reference, platform: str = "linux/amd64") -> RemoteImage:
    """Find an image in its registry; of an index, the image for `platform`.

    Raises:
        Failure: no such image, or none for this platform; one that is damaged or of a kind that is not known; a
            registry that fails.
    """
    repository = Repository(ref)
    try:
        manifest, index = read_manifest(repository, ref.digest or ref.tag or "latest"), ""
        if manifest.media_type in INDEXES:
            manifest, index = read_manifest(repository, _select(manifest, platform)), manifest.digest
        if manifest.media_type not in (DOCKER, OCI):
            old = manifest.body.get("schemaVersion") == 1
            raise ValueError(f"it is {'of schema 1, which is too old' if old else f'no image: {manifest.media_type}'}")
        if (count := len(manifest.body["layers"])) > limits.LAYERS:
            raise ValueError(f"it has {count:,} layers, and may have {limits.LAYERS:,}")
        layers = tuple(read_descriptor(layer) for layer in manifest.body["layers"])
        if (packed := sum(layer.size for layer in layers)) > limits.IMAGE:
            raise ValueError(f"its layers have {packed:,} bytes, and may have {limits.size(limits.IMAGE)}")
        if strange := {layer.media_type for layer in layers} - LAYERS:
            raise ValueError(f"a layer is of a kind that vpatch does not read: {min(strange)}")
        hold(manifest.body, MANIFEST, "its manifest is damaged")
        config = _read_config(repository, read_descriptor(manifest.body["config"]))
        if (found := f"{config.get('os')}/{config.get('architecture')}") != platform:
            raise ValueError(f"it is for {found}, not {platform}")
        diff_ids = tuple(map(str, config["rootfs"]["diff_ids"]))
        if len(diff_ids) != len(layers):
            raise ValueError(f"it has {len(layers)} layers, and its config names {len(diff_ids)}")
        return RemoteImage(ref, repository, index, manifest, config, layers, diff_ids)
    except ValueError as error:
        raise repository.failure(str(error)) from error
    except (LookupError, TypeError, AttributeError) as error:
        raise repository.failure("its manifest or its config is damaged") from error


def _select(index: Manifest, platform: str) -> str:
    there: dict[str, str] = {}
    for entry in index.body["manifests"]:
        about = entry.get("platform") or {}
        name = f"{about.get('os')}/{about.get('architecture')}"
        if name != "unknown/unknown":  # an attestation
            there.setdefault(name, read_descriptor(entry).digest)
    if platform not in there:
        raise ValueError(f"it is not for {platform}, only for {', '.join(sorted(there)) or 'nothing'}")
    return there[platform]


def _read_config(repository: Repository, blob: Descriptor) -> dict[str, Any]:
    if blob.media_type not in CONFIGS or blob.size > LARGEST:
        raise ValueError(f"it is no image of a container: its config is {blob.size} bytes of {blob.media_type}")
    config = read_object(persist(lambda: b"".join(stream(repository, blob, lambda _: None))))
    hold(config, CONFIG, "its config is damaged")
    return config
