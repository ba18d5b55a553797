"""Bring a new image into the engine: its configuration and its one layer. It gets no tag here."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import requests
from docker.errors import DockerException, ImageNotFound

from vpatch.errors import Failure, Problem
from vpatch.image.config import serialise
from vpatch.image.engine.client import naming, said, split
from vpatch.image.engine.commit import commit
from vpatch.image.engine.containers import Run
from vpatch.image.layer import digest_of
from vpatch.image.model import Base, Layer

if TYPE_CHECKING:
    from docker import DockerClient


class Loaded(NamedTuple):
    """The ID of an image, the diffID of its last layer, and whether it was not there before."""

    image: str
    diff_id: str
    new: bool


def load(client: DockerClient, base: Base, config: Mapping[str, Any], layer: Layer, run: Run) -> Loaded:
    """Make the image.

    The archive holds the new layer only: the engine has the others. An engine that insists on all of them, as stores
    of containerd's may, gets the files by way of a container instead, and then the layer is of its making.

    Args:
        client: the engine.
        base: the image to build on.
        config: the new image's configuration.
        layer: the new layer.
        run: what its containers belong to, and the image until it is tested.

    Raises:
        Failure: the engine refuses both ways.
    """
    wanted = config["rootfs"]["diff_ids"]
    content = serialise(config)
    known = _layers(client, digest_of(content))
    try:
        if known is None:
            run.makes(digest_of(content))
        if known != wanted:
            # The answer comes while the engine works: it is done when the answer ends.
            for line in client.api.load_image(_archive(content, wanted, layer)):
                if "error" in line:
                    raise DockerException(line["error"])
        if _layers(client, digest_of(content)) == wanted:
            return Loaded(digest_of(content), layer.diff_id, new=known is None)
    except DockerException as error:
        if "no space left" in said(error):
            raise Failure(Problem("no space left", base.ref, said(error))) from error
    image, diff_id = commit(client, base, config, layer, run.name)
    run.makes(image)
    return Loaded(image, diff_id, new=True)


def _archive(config: bytes, diff_ids: list[str], layer: Layer) -> bytes:
    """Make an archive as of `docker save`, in which all layers but the last are named, and not there."""
    names = [f"{diff_id.removeprefix('sha256:')}.tar" for diff_id in diff_ids]
    image = f"{digest_of(config).removeprefix('sha256:')}.json"
    manifest = [{"Config": image, "RepoTags": None, "Layers": names}]
    members = {image: config, names[-1]: layer.blob, "manifest.json": json.dumps(manifest).encode()}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _layers(client: DockerClient, image: str) -> list[str] | None:
    try:
        return list(client.api.inspect_image(image)["RootFS"]["Layers"])
    except ImageNotFound:
        return None


def discard(client: DockerClient, image: str) -> None:
    """Take away an image that no tag points at; one that has a tag stays.

    Raises:
        Failure: the engine refuses.
    """
    with naming("cannot remove", image):
        if not client.api.inspect_image(image)["RepoTags"]:
            client.api.remove_image(image, noprune=True)  # or an untagged base would go with it


@contextmanager
def tagged(client: DockerClient, image: str, names: Sequence[str]) -> Iterator[None]:
    """Let tags point at an image; if that or the block fails, they point again at what they did before.

    Raises:
        Failure: the engine refuses.
    """
    before: dict[str, str | None] = {}
    try:
        for name in names:
            with naming("cannot tag", name):
                before[name] = _id(client, name)
                client.api.tag(image, *split(name))
        yield
    except BaseException:
        for name, old in before.items():
            with suppress(DockerException, requests.RequestException):
                if old:
                    client.api.tag(old, *split(name))
                else:
                    client.api.remove_image(name, noprune=True)
        raise


def _id(client: DockerClient, name: str) -> str | None:
    try:
        return str(client.api.inspect_image(name)["Id"])
    except ImageNotFound:
        return None
