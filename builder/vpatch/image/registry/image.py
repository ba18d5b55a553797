"""Repositories of a registry, and the images in them: manifest, configuration and blobs, checked by their digests."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urljoin

import requests

from vpatch.errors import Failure, Problem
from vpatch.foreign import parse_json
from vpatch.image.config import CONFIG, MANIFEST, Base, digest_of, validate
from vpatch.image.filesystem import Limits
from vpatch.image.registry import session as sessions
from vpatch.image.registry.reference import DIGEST, Reference, is_address, is_private, login_command
from vpatch.net import session as http
from vpatch.net.ranges import CutError, blocks
from vpatch.net.session import answers, cause, shown, size

ATTEMPTS = 3  # for each blob
NO_IMAGE = "no such image"
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

T = TypeVar("T")


class TransientError(Failure):
    """Transient; retry."""


class ForbiddenError(Failure):
    """The user is not allowed to do this."""


class MissingError(Failure):
    """The registry answers 404."""


class NoImageError(MissingError):
    """It has no such image."""


@dataclass(frozen=True)
class Descriptor:
    """A reference to a blob."""

    media_type: str
    digest: str  # `sha256:<hex>`
    size: int  # bytes

    @property
    def json(self) -> dict[str, Any]:
        """The descriptor as a manifest has it."""
        return {"mediaType": self.media_type, "size": self.size, "digest": self.digest}


@dataclass(frozen=True)
class Manifest:
    """A manifest or an index: its bytes `raw`, their digest, and the parsed JSON."""

    media_type: str
    digest: str
    raw: bytes = field(repr=False)
    body: Mapping[str, Any] = field(repr=False)


class Repository:
    """The repository of `ref`. `task` is what its failures are called: `cannot read`, `cannot push`."""

    def __init__(self, ref: Reference, task: str = "cannot read") -> None:
        self.ref, self._task = ref, task
        self._session = sessions.Session(ref.host)

    def ask(
        self, method: str, path: str, *, expect: Collection[int] = (200,), missing: str = "", **body: Any
    ) -> requests.Response:
        """Send a request and return the answer, one of `expect`, for the caller to close.

        `path` is relative to the repository, or an address that the registry gave; `missing` explains a 404, without it
        there is no such image; `body` is `data` and `headers`. POST and PUT are not repeated: if the server is busy or
        gone, they raise `TransientError`.
        """
        again, stream = method in {"POST", "PUT"}, method == "GET"
        try:
            url = urljoin(f"{self._session.origin}/v2/{self.ref.repository}/", path)
            if not is_address(url):
                raise self.failure("it sends to what is no address")
            if not is_private(url):
                raise self.failure(f"it sends to {shown(url)}, which is not https")
            answer = self._session.request(url, method, stream=stream, **body)
        except sessions.DeniedError as error:
            raise self._denied(error.status, str(error)) from None
        except requests.ReadTimeout as error:
            raise self.failure(f"no answer within {sessions.timeout(method):g} s", again=again) from error
        except (OSError, ValueError) as error:  # ValueError: invalid addresses
            raise self.failure(cause(error), again=again) from error
        if answer.status_code in expect:
            return answer
        answer.close()
        status = answer.status_code
        if status == requests.codes.not_found:
            if not missing:
                raise NoImageError(*self.failure(NO_IMAGE).problems)
            raise MissingError(*self.failure(missing).problems)
        busy = status in http.BUSY and status != requests.codes.too_many_requests
        raise self._denied(status, answers(answer) + _error_code(answer, stream=stream), again=again and busy)

    def failure(self, why: str, *, again: bool = False) -> Failure:
        """Return a failure with its reason; if `again`, a transient one."""
        kind = TransientError if again else Failure
        return kind(Problem(self._task, str(self.ref), why))

    def _denied(self, status: int, why: str, *, again: bool = False) -> Failure:
        log_in = f"log in with `{login_command(self.ref.host)}`"
        if status in (requests.codes.unauthorized, requests.codes.forbidden):
            denied = self._session.login.credentials_error or self.failure(f"private, or not there: {log_in}")
            return ForbiddenError(*denied.problems)
        if status == requests.codes.too_many_requests:
            return self.failure(f"too many requests: wait, or {log_in}")
        return self.failure(why or f"its token server answers {status}", again=again)


def _error_code(answer: requests.Response, *, stream: bool) -> str:
    """Return a registry's error code, such as ` (MANIFEST_INVALID)`, but not its text, which may hold anything."""
    try:
        code = "" if stream else parse_json(answer.content)["errors"][0]["code"]
    except (ValueError, LookupError, TypeError):
        return ""
    return f" ({code})" if isinstance(code, str) and code.replace("_", "").isalpha() else ""


def retry(action: Callable[[], T]) -> T:
    """Call `action`, a few times if it fails with a transient error."""
    for attempt in range(ATTEMPTS - 1):
        try:
            return action()
        except TransientError:
            time.sleep(http.BACKOFF * 2**attempt)
    return action()


def read_blob(repository: Repository, blob: Descriptor, progress: Callable[[int], object]) -> Generator[bytes]:
    """Yield the bytes of a blob as they come; `progress` gets the size of each. Only the end proves them right."""
    digest, received = hashlib.sha256(), 0
    with repository.ask("GET", f"blobs/{blob.digest}", missing=f"the blob {blob.digest} is not there") as answer:
        try:
            for block in blocks(answer):
                received += len(block)
                if received > blob.size:
                    break
                digest.update(block)
                progress(len(block))
                yield block
        except CutError as error:
            raise repository.failure(f"the blob {blob.digest} is cut: {error}", again=True) from error
    if received < blob.size:
        raise repository.failure(f"the blob {blob.digest} is cut: {received} of {blob.size} bytes came", again=True)
    if received > blob.size or digest.hexdigest() != blob.digest.partition(":")[2]:
        raise repository.failure(f"the blob {blob.digest} is not what its digest says")


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
        if (count := len(manifest.body["layers"])) > Limits.LAYERS:
            raise ValueError(f"it has {count:,} layers, and may have {Limits.LAYERS:,}")
        layers = tuple(_descriptor(layer) for layer in manifest.body["layers"])
        if (packed := sum(layer.size for layer in layers)) > Limits.IMAGE:
            raise ValueError(f"its layers have {packed:,} bytes, and may have {size(Limits.IMAGE)}")
        if strange := {layer.media_type for layer in layers} - _LAYERS:
            raise ValueError(f"a layer is of a kind that vpatch does not read: {min(strange)}")
        validate(manifest.body, MANIFEST, "its manifest is damaged")
        config = _read_config(repository, _descriptor(manifest.body["config"]))
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


def _descriptor(found: Any) -> Descriptor:
    match found:
        case {"mediaType": str(kind), "digest": str(digest), "size": int(count)} if (
            DIGEST.fullmatch(digest) and count >= 0
        ):
            return Descriptor(kind, digest, count)
    raise ValueError("a descriptor in it is none, or of a digest other than sha256")


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


def _read_config(repository: Repository, blob: Descriptor) -> dict[str, Any]:
    if blob.media_type not in _CONFIGS or blob.size > LARGEST:
        raise ValueError(f"it is no image of a container: its config is {blob.size} bytes of {blob.media_type}")
    config = read_object(retry(lambda: b"".join(read_blob(repository, blob, lambda _: None))))
    validate(config, CONFIG, "its config is damaged")
    return config
