"""Images in a registry: manifest and configuration, checked by their digests, and the tags that come close."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from vpatch.errors import Failure, did_you_mean, nearest
from vpatch.foreign import parse_json
from vpatch.image.config import CONFIG, MANIFEST, Base, digest_of, validate
from vpatch.image.filesystem import Limits
from vpatch.image.registry.reference import DIGEST, Reference
from vpatch.image.registry.repository import Descriptor, NoImageError, Repository, read_blob, retry
from vpatch.net import size
from vpatch.net.ranges import CutError, blocks

LARGEST = 4 << 20  # bytes of a manifest or a config: registries take no larger manifest

DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
OCI = "application/vnd.oci.image.manifest.v1+json"
_INDEXES = ("application/vnd.docker.distribution.manifest.list.v2+json", "application/vnd.oci.image.index.v1+json")
_CONFIGS = ("application/vnd.docker.container.image.v1+json", "application/vnd.oci.image.config.v1+json")
_LAYER = {DOCKER: "application/vnd.docker.image.rootfs.diff.tar", OCI: "application/vnd.oci.image.layer.v1.tar"}
NEW_LAYER = {DOCKER: f"{_LAYER[DOCKER]}.gzip", OCI: f"{_LAYER[OCI]}+gzip"}
_PACKED = ("", ".gzip", "+gzip", ".zstd", "+zstd")
# Without layers that may not be distributed: they belong to Windows and are not in the registry.
_LAYERS = frozenset(f"{plain}{packed}" for plain in _LAYER.values() for packed in _PACKED)


@dataclass(frozen=True)
class Manifest:
    """A manifest or an index: its bytes `raw`, their digest, and the parsed JSON."""

    media_type: str
    digest: str
    raw: bytes = field(repr=False)
    body: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class RemoteImage:
    """An image of one platform in a registry."""

    ref: Reference  # its name as asked for
    repository: Repository = field(repr=False)
    manifest: Manifest
    config: Mapping[str, Any] = field(repr=False)
    layers: tuple[Descriptor, ...]  # from the lowest
    diff_ids: tuple[str, ...]  # digests of their tars

    @property
    def digest(self) -> str:
        """The digest of its manifest, different for each platform."""
        return self.manifest.digest

    @property
    def base(self) -> Base:
        """The image as one to build on."""
        return Base(str(self.ref), str(self.manifest.body["config"]["digest"]), self.config, self.digest)


def find_image(ref: Reference, platform: str | None = None) -> RemoteImage:
    """Find an image in its registry, as `open_image` does; the failure of a missing tag names the closest ones."""
    try:
        return open_image(ref, platform)
    except NoImageError as error:
        (problem,) = error.problems
        hint = "" if ref.digest else similar_tags(ref)
        raise NoImageError(replace(problem, hint=hint or "check its name and its tag")) from error


def similar_tags(ref: Reference) -> str:
    """Return the question for the closest tags; "" if there are none, or the registry does not tell."""
    with suppress(Failure, CutError, ValueError, LookupError, TypeError):
        raw = b""
        with Repository(ref).ask("GET", "tags/list") as answer:
            for block in blocks(answer):
                raw += block
                if len(raw) > LARGEST:
                    return ""
        names = [name for name in parse_json(raw)["tags"] or () if isinstance(name, str) and name != ref.tag]
        return did_you_mean(f"{ref.name}:{name}" for name in nearest(ref.tag or "", names))
    return ""


def open_image(ref: Reference, platform: str | None = None) -> RemoteImage:
    """Find an image in its registry; in an index, the one for `platform` (default: `linux/amd64`)."""
    platform = platform or "linux/amd64"
    repository = Repository(ref)
    try:
        manifest = read_manifest(repository, ref.digest or ref.tag or "latest")
        if manifest.media_type in _INDEXES:
            manifest = read_manifest(repository, _select(manifest, platform))
        if manifest.media_type not in (DOCKER, OCI):
            old = manifest.body.get("schemaVersion") == 1
            raise ValueError(f"it is {'of schema 1, which is too old' if old else f'no image: {manifest.media_type}'}")
        layers = _layers(manifest)
        validate(manifest.body, MANIFEST, "its manifest is damaged")
        pointer = _descriptor(manifest.body["config"])
        if pointer.media_type not in _CONFIGS or pointer.size > LARGEST:
            why = f"its config is {pointer.size} bytes of {pointer.media_type}"
            raise ValueError(f"it is no image of a container: {why}")
        config = read_object(retry(lambda: b"".join(read_blob(repository, pointer, lambda _: None))))
        validate(config, CONFIG, "its config is damaged")
        if (found := f"{config.get('os')}/{config.get('architecture')}") != platform:
            raise ValueError(f"it is for {found}, not {platform}")
        diff_ids = tuple(map(str, config["rootfs"]["diff_ids"]))
        if len(diff_ids) != len(layers):
            raise ValueError(f"it has {len(layers)} layers, and its config names {len(diff_ids)}")
        return RemoteImage(ref, repository, manifest, config, layers, diff_ids)
    except ValueError as error:
        raise repository.failure(str(error)) from error
    except (LookupError, TypeError, AttributeError) as error:
        raise repository.failure("its manifest or its config is damaged") from error


def _layers(manifest: Manifest) -> tuple[Descriptor, ...]:
    found = manifest.body["layers"]
    if len(found) > Limits.LAYERS:
        raise ValueError(f"it has {len(found):,} layers, and may have {Limits.LAYERS:,}")
    layers = tuple(map(_descriptor, found))
    if (packed := sum(layer.size for layer in layers)) > Limits.IMAGE:
        raise ValueError(f"its layers have {packed:,} bytes, and may have {size(Limits.IMAGE)}")
    if strange := {layer.media_type for layer in layers} - _LAYERS:
        raise ValueError(f"a layer is of a kind that vpatch does not read: {min(strange)}")
    return layers


def read_manifest(repository: Repository, name: str) -> Manifest:
    """Read the manifest or the index that a tag or a digest names. Raises `ValueError` if it is not a JSON object."""
    raw = b""
    accept = {"Accept": ", ".join((OCI, DOCKER, *_INDEXES))}
    with repository.ask("GET", f"manifests/{name}", headers=accept) as answer:
        try:
            for block in blocks(answer):
                raw += block
                if len(raw) > LARGEST:
                    raise repository.failure("its manifest is larger than any may be")
        except CutError as error:
            raise repository.failure(f"its manifest is cut: {error}") from error
    digest = digest_of(raw)
    expected = name if name.startswith("sha256:") else answer.headers.get("Docker-Content-Digest", digest)
    if expected != digest:
        raise repository.failure(f"its manifest is not what its digest {expected} says")
    body = read_object(raw)
    kind = body.get("mediaType") or answer.headers.get("Content-Type", "").partition(";")[0]
    return Manifest(str(kind), digest, raw, body)


def read_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises `ValueError` if it is none, or could not be written again."""
    try:
        found = parse_json(raw)
    except UnicodeEncodeError as error:
        raise ValueError("its manifest or its config has half of a character") from error
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("its manifest or its config is no JSON object")
    return found


def _select(index: Manifest, platform: str) -> str:
    there: dict[str, str] = {}
    for entry in index.body["manifests"]:
        about = entry.get("platform") or {}
        name = f"{about.get('os')}/{about.get('architecture')}"
        if name != "unknown/unknown":  # an attestation
            there.setdefault(name, _descriptor(entry).digest)
    if platform not in there:
        raise ValueError(f"it is not for {platform}, only for {', '.join(sorted(there)) or 'nothing'}")
    return there[platform]


def _descriptor(found: Any) -> Descriptor:
    match found:
        case {"mediaType": str(kind), "digest": str(digest), "size": int(count)} if (
            DIGEST.fullmatch(digest) and count >= 0
        ):
            return Descriptor(kind, digest, count)
    raise ValueError("a descriptor in it is none, or of a digest other than sha256")
