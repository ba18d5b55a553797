"""What registries store: blobs, pointed at by descriptors, and the media types of images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from vpatch.image.registry.reference import DIGEST
from vpatch.image.registry.repository import Repository
from vpatch.net.ranges import CutError, blocks

DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
OCI = "application/vnd.oci.image.manifest.v1+json"
INDEXES = (
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.index.v1+json",
)
CONFIGS = ("application/vnd.docker.container.image.v1+json", "application/vnd.oci.image.config.v1+json")
_LAYER = {DOCKER: "application/vnd.docker.image.rootfs.diff.tar", OCI: "application/vnd.oci.image.layer.v1.tar"}
NEW_LAYER = {DOCKER: f"{_LAYER[DOCKER]}.gzip", OCI: f"{_LAYER[OCI]}+gzip"}
# Not those that may not be distributed: they are of Windows, and not in the registry.
LAYERS = frozenset(
    f"{plain}{packed}" for plain in _LAYER.values() for packed in ("", ".gzip", "+gzip", ".zstd", "+zstd")
)


@dataclass(frozen=True)
class Descriptor:
    """Points at a blob: `digest` is `sha256:<hex>`, `size` in bytes."""

    media_type: str
    digest: str
    size: int

    @property
    def json(self) -> dict[str, Any]:
        """As it stands in a manifest."""
        return {"mediaType": self.media_type, "size": self.size, "digest": self.digest}


def read_descriptor(found: Any) -> Descriptor:
    """Read one out of a manifest.

    Raises:
        ValueError: it is none.
    """
    match found:
        case {"mediaType": str(kind), "digest": str(digest), "size": int(size)} if (
            DIGEST.fullmatch(digest) and size >= 0
        ):
            return Descriptor(kind, digest, size)
    raise ValueError("a descriptor in it is none, or of a digest other than sha256")


def stream(repository: Repository, blob: Descriptor, heard: Callable[[int], object]) -> Generator[bytes]:
    """Give the bytes of a blob as they come; `heard` hears how many each time. Their end says that all were right.

    Raises:
        PassingError: the blob was cut.
        Failure: it is not there, or not what its digest says.
    """
    digest, size = hashlib.sha256(), 0
    with repository.ask("GET", f"blobs/{blob.digest}", missing=f"the blob {blob.digest} is not there") as answer:
        try:
            for block in blocks(answer):
                size += len(block)
                if size > blob.size:
                    break
                digest.update(block)
                heard(len(block))
                yield block
        except CutError as error:
            raise repository.failure(f"the blob {blob.digest} is cut: {error}", again=True) from error
    if size < blob.size:
        raise repository.failure(f"the blob {blob.digest} is cut: {size} of {blob.size} bytes came", again=True)
    if size > blob.size or digest.hexdigest() != blob.digest.partition(":")[2]:
        raise repository.failure(f"the blob {blob.digest} is not what its digest says")
