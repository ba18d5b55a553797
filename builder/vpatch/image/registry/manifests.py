"""Manifests, of which a registry's tags and digests are the names, checked against their digests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vpatch.image.layer import digest_of
from vpatch.image.registry.descriptors import DOCKER, INDEXES, OCI
from vpatch.image.registry.repository import Repository
from vpatch.image.shapes import read_json
from vpatch.net.ranges import CutError, blocks

LARGEST = 4 << 20  # bytes of a manifest or a config, the most that registries take of the former


@dataclass(frozen=True)
class Manifest:
    """A manifest or an index: `raw` are its bytes, of which `digest` is, and `body` is what they say."""

    media_type: str
    digest: str
    raw: bytes = field(repr=False)
    body: Mapping[str, Any] = field(repr=False)


def read_manifest(repository: Repository, name: str) -> Manifest:
    """Read the manifest or the index that a tag or a digest names.

    Raises:
        Failure: there is none, it is not what its digest says, or the registry fails.
        ValueError: it is no JSON object.
    """
    raw = b""
    accept = {"Accept": ", ".join((OCI, DOCKER, *INDEXES))}
    with repository.ask("GET", f"manifests/{name}", headers=accept) as answer:
        try:
            for block in blocks(answer):
                raw += block
                if len(raw) > LARGEST:
                    raise repository.failure("its manifest is larger than any may be")
        except CutError as error:
            raise repository.failure(f"its manifest is cut: {error}") from error
    digest = digest_of(raw)
    said = name if name.startswith("sha256:") else answer.headers.get("Docker-Content-Digest", digest)
    if said != digest:
        raise repository.failure(f"its manifest is not what its digest {said} says")
    body = read_object(raw)
    kind = body.get("mediaType") or answer.headers.get("Content-Type", "").partition(";")[0]
    return Manifest(str(kind), digest, raw, body)


def read_object(raw: bytes) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ValueError: it is none, or what it says could not be written again.
    """
    try:
        found = read_json(raw)
    except UnicodeEncodeError as error:
        raise ValueError("its manifest or its config has half of a character") from error
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("its manifest or its config is no JSON object")
    return found
