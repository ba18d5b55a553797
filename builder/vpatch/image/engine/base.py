"""Find the image to build on in the engine, and get it where it is not there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import requests
from docker.errors import DockerException, ImageNotFound

from vpatch.errors import Failure, Problem
from vpatch.image.engine.client import naming, said
from vpatch.image.model import Base
from vpatch.image.registry.reference import parse

if TYPE_CHECKING:
    from docker import DockerClient

    from vpatch.net.ranges import Progress

# What the engine says of an image beside its configuration, and what the configuration calls it.
_FIELDS = {"Architecture": "architecture", "Os": "os", "Variant": "variant", "Created": "created", "Author": "author"}


def resolve(
    client: DockerClient, ref: str, platform: str | None, progress: Progress | None = None, *, pull: bool = True
) -> Base:
    """Give the image that `ref` names, pulled where the engine lacks it, unless `pull` is false.

    Raises:
        Failure: it is not there, private, of another platform, or there is no space for it.
    """
    found = _inspected(client, ref)
    if pull and (found is None or (platform and platform != _platform(found))):
        _pull(client, ref, platform, progress)
        found = _inspected(client, ref)
    if found is None:
        raise Failure(Problem("no such image", ref, "the engine does not have it"))
    if platform and platform != _platform(found):
        raise Failure(Problem("wrong platform", ref, f"it is for {_platform(found)}, not for {platform}"))
    config = {ours: found[theirs] for theirs, ours in _FIELDS.items() if found.get(theirs)}
    config |= {"config": found["Config"], "rootfs": {"type": "layers", "diff_ids": found["RootFS"]["Layers"]}}
    if history := _history(client, found):
        config["history"] = history
    return Base(ref, found["Id"], config, _digest(found, ref))


def _inspected(client: DockerClient, ref: str) -> dict[str, Any] | None:
    with naming("cannot read", ref):
        try:
            return dict(client.api.inspect_image(ref))
        except ImageNotFound:
            return None


def _platform(found: dict[str, Any]) -> str:
    return f"{found['Os']}/{found['Architecture']}"


def _digest(found: dict[str, Any], ref: str) -> str:
    """Give the digest by which its repository knows it, empty for an image that came from no registry."""
    if ref.startswith("sha256:"):
        return ""
    named = parse(ref)
    pairs = [parse(pair) for pair in found.get("RepoDigests") or ()]
    return named.digest or next((str(pair.digest) for pair in pairs if pair.name == named.name), "")


def _history(client: DockerClient, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Give the history in the form of a configuration, none where the engine's does not tell which step has a layer."""
    with naming("cannot read", found["Id"]):
        steps = list(reversed(client.api.history(found["Id"])))
    if sum(step["Size"] > 0 for step in steps) != len(found["RootFS"]["Layers"]):
        return []
    return [{"created_by": step["CreatedBy"], **({} if step["Size"] else {"empty_layer": True})} for step in steps]


def _pull(client: DockerClient, ref: str, platform: str | None, progress: Progress | None) -> None:
    sizes: dict[str, tuple[int, int]] = {}
    try:
        for line in client.api.pull(ref, platform=platform, stream=True, decode=True):
            if "error" in line:
                raise _refused(ref, str(line["error"]).lower())
            detail = line.get("progressDetail") or {}
            if progress and line.get("status") == "Downloading" and detail.get("total"):
                sizes[line["id"]] = (detail["current"], detail["total"])
                progress(sum(now for now, _ in sizes.values()), sum(total for _, total in sizes.values()))
    except (DockerException, requests.RequestException) as error:
        raise _refused(ref, said(error)) from error


def _refused(ref: str, text: str) -> Failure:
    if "no space left" in text:
        return Failure(Problem("no space left", ref, text))
    if re.search(r"denied|unauthorized|authentication required|no basic auth", text):
        return Failure(Problem("no such image", ref, f"it is private, or not there; docker login may help: {text}"))
    if re.search(r"manifest unknown|not found|no matching manifest|invalid reference", text):
        return Failure(Problem("no such image", ref, text))
    return Failure(Problem("cannot pull", ref, text))
