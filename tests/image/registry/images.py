"""Small images, and bases like vllm-openai's, pushed to a registry by plain HTTP requests."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import requests
import zstandard
from vpatch.image.registry.image import RemoteImage, open_image
from vpatch.image.registry.reference import parse
from vpatch.image.registry.tar import BadLayerError, Spent, read_layer

from tests.conftest import Program, Ran
from tests.image.standin import BASE, CONFIG, ONE, SITE

TYPES = {
    "docker": (
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.container.image.v1+json",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    ),
    "oci": (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.config.v1+json",
        "application/vnd.oci.image.layer.v1.tar+gzip",
        "application/vnd.oci.image.index.v1+json",
    ),
}
PACKS: dict[str, Callable[[bytes], bytes]] = {
    # Many tests push the same layers.
    "gzip": lru_cache(8)(lambda data: gzip.compress(data, compresslevel=1, mtime=0)),
    # What eStargz makes: a member for each piece.
    "members": lambda data: b"".join(gzip.compress(data[at : at + 700], mtime=0) for at in range(0, len(data), 700)),
    # What zstd:chunked makes: several frames, and one to be skipped.
    "zstd": lambda data: (
        zstandard.compress(data[:600]) + b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc" + zstandard.compress(data[600:])
    ),
    "plain": lambda data: data,
}


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar(*members: tuple[str, Any] | tarfile.TarInfo) -> bytes:
    """Return a tar: a path with bytes is a file, with None a folder, with text a link; or pass the header itself."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            path, what = member
            info = tarfile.TarInfo(path)
            info.mode, info.uid, info.gid, info.mtime = 0o644, 7, 8, 1_700_000_000
            if what is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o750
            elif isinstance(what, str):
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, what, 0o777
            else:
                info.size = len(what)
            archive.addfile(info, io.BytesIO(what) if isinstance(what, bytes) else None)
    return body.getvalue()


def hard(path: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.type, info.linkname = tarfile.LNKTYPE, target
    return info


@dataclass
class Built:
    """A pushed image, with everything that a test may compare or spoil."""

    digest: str
    manifest: dict[str, Any]
    config: dict[str, Any]


def put_blob(host: str, repository: str, data: bytes, **options: Any) -> str:
    begun = requests.post(f"http://{host}/v2/{repository}/blobs/uploads/", timeout=20, **options)
    assert begun.status_code == 202, begun.text
    query = {"digest": digest(data)}
    sent = requests.put(begun.headers["Location"], params=query, data=data, timeout=20, **options)
    assert sent.status_code == 201, sent.text
    return digest(data)


def put_manifest(host: str, repository: str, name: str, body: Mapping[str, Any], **options: Any) -> str:
    """Push a manifest under a tag, or under its digest if `name` is empty."""
    raw = json.dumps(body).encode()
    headers = {"Content-Type": body["mediaType"]}
    place = f"http://{host}/v2/{repository}/manifests/{name or digest(raw)}"
    sent = requests.put(place, data=raw, headers=headers, timeout=20, **options)
    assert sent.status_code == 201, sent.text
    return digest(raw)


def pulled(image: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the address of an image's repository, its manifest and its config; the image is named by its digest."""
    host, repository, name = re.fullmatch(r"([^/]+)/([^@]+)@(.+)", image).groups()  # type: ignore[union-attr]
    place = f"http://{host}/v2/{repository}"
    manifest = requests.get(f"{place}/manifests/{name}", headers={"Accept": TYPES["docker"][0]}, timeout=20).json()
    return place, manifest, requests.get(f"{place}/blobs/{manifest['config']['digest']}", timeout=20).json()


def derive(image: str, *steps: tuple[str, bytes | None]) -> str:
    """Push an image on `image`, with a step of history each, and a layer unless it is None; return its name."""
    place, manifest, config = pulled(image)
    host, repository = place.removeprefix("http://").split("/v2/")
    for step, layer in steps:
        config["history"].append({"created_by": step, **({} if layer else {"empty_layer": True})})
        if layer:
            config["rootfs"]["diff_ids"].append(digest(layer))
            about = {"size": len(layer), "digest": put_blob(host, repository, layer)}
            manifest["layers"].append({**manifest["layers"][-1], **about})
    raw = json.dumps(config).encode()
    manifest["config"] |= {"size": len(raw), "digest": put_blob(host, repository, raw)}
    return f"{host}/{repository}@{put_manifest(host, repository, '', manifest)}"


def last_files(image: str) -> dict[str, bytes]:
    """Return the bytes of each file in an image's last layer, by its path in vLLM's folder."""
    place, manifest, _ = pulled(image)
    blob = requests.get(f"{place}/blobs/{manifest['layers'][-1]['digest']}", timeout=20).content
    with tarfile.open(fileobj=io.BytesIO(blob)) as archive:
        files = {one.name: archive.extractfile(one) for one in archive if one.isfile()}
        return {path.removeprefix(f"{SITE}/"): file.read() for path, file in files.items() if file}


def put_image(
    host: str,
    repository: str,
    tag: str,
    layers: Sequence[bytes],
    *,
    flavour: str = "docker",
    pack: str = "gzip",
    history: Sequence[Mapping[str, Any]] | None = None,
    platform: str = "linux/amd64",
    manifest: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Built:
    """Push an image of these tars; `manifest` and `settings` override its manifest and its config."""
    kind, config_kind, layer_kind, _ = TYPES[flavour]
    config: dict[str, Any] = {
        **dict(zip(("os", "architecture"), platform.split("/"), strict=True)),
        "config": {"Env": ["PATH=/usr/bin", "EMPTY="], "Labels": {"a": "b"}},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
        "history": list(history) if history is not None else [{"created_by": "RUN x # buildkit"} for _ in layers],
        **(settings or {}),
    }
    raw = json.dumps(config).encode()
    blobs = [PACKS[pack](layer) for layer in layers]
    for blob in (*blobs, raw):
        put_blob(host, repository, blob, **options)
    body: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": kind,
        "config": {"mediaType": config_kind, "size": len(raw), "digest": digest(raw)},
        "layers": [{"mediaType": layer_kind, "size": len(blob), "digest": digest(blob)} for blob in blobs],
        **(manifest or {}),
    }
    return Built(put_manifest(host, repository, tag, body, **options), body, config)


def opened(name: str, platform: str = "linux/amd64") -> RemoteImage:
    return open_image(parse(name), platform)


def refused_layer(data: bytes) -> str:
    """Return why a layer is refused; none of its bytes are kept."""
    spent = Spent()
    with pytest.raises(BadLayerError) as caught:
        read_layer(iter([data]), lambda _: True, spent)
    assert spent["MEMORY"] == 0
    return str(caught.value)


def put_index(host: str, repository: str, tag: str, images: Mapping[str, Built], *, flavour: str = "docker") -> str:
    entries = []
    for platform, image in images.items():
        about = {"mediaType": image.manifest["mediaType"], "size": len(json.dumps(image.manifest))}
        of = dict(zip(("os", "architecture"), platform.split("/"), strict=True))
        entries.append({**about, "digest": image.digest, "platform": of})
    body = {"schemaVersion": 2, "mediaType": TYPES[flavour][3], "manifests": entries}
    return put_manifest(host, repository, tag, body)


COPIED = "COPY examples /vllm-workspace/examples # buildkit"
BALLAST = 4 << 20


@dataclass(frozen=True)
class Base:
    """A base in its registry: its name, and what was pushed."""

    name: str
    built: Built


def parents(folder: Path) -> list[tuple[Path, str]]:
    """Return an empty folder for each folder above vLLM, as the tars of real layers have them."""
    (folder / "empty").mkdir()
    above = [str(path) for path in Path(SITE).parents][-2::-1]
    return [(folder / "empty", path) for path in above]


def put_base(host: str, layers: list[bytes], name: str = BASE, **more: Any) -> Base:
    repository, _, tag = name.rpartition(":")
    history = [{"created_by": "RUN pip install torch"}, {"created_by": "RUN pip install vllm"}, {"created_by": COPIED}]
    settings = {"config": dict(CONFIG), "created": "2026-05-09T10:00:00.123456789Z"}
    return Base(f"{host}/{name}", put_image(host, repository, tag, layers, history=history, settings=settings, **more))


def build(vpatch: Program, base: str, *more: str) -> Ran:
    return vpatch("build", "--registry", "--base", base, *(() if "--overlay" in more else ONE), *more)
