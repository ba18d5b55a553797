"""Send an image to the registries that its tags name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vpatch.errors import Failure, Problem
from vpatch.image.engine.client import naming, split

if TYPE_CHECKING:
    from docker import DockerClient


def push(client: DockerClient, names: Sequence[str]) -> str:
    """Push each tag; give `repository@digest` of the first.

    Raises:
        Failure: a registry refuses, or is not there.
    """
    pushed = [_pushed(client, name) for name in names]
    return pushed[0]


def _pushed(client: DockerClient, name: str) -> str:
    repository, label = split(name)
    digest = ""
    with naming("cannot push", name):
        for line in client.api.push(repository, label, stream=True, decode=True):
            if "error" in line:
                raise Failure(Problem("cannot push", name, str(line["error"]).lower()))
            digest = (line.get("aux") or {}).get("Digest", digest)
    if not digest:
        raise Failure(Problem("cannot push", name, "the engine did not say under which digest"))
    return f"{repository}@{digest}"
