"""Make an image by way of a container, for engines that take no archive with one layer only."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vpatch.errors import Failure, Problem
from vpatch.image.checks import provenance_of
from vpatch.image.engine.client import naming
from vpatch.image.engine.containers import container
from vpatch.image.layer import WHITEOUT
from vpatch.image.model import Base, Layer

if TYPE_CHECKING:
    from docker import DockerClient


def commit(client: DockerClient, base: Base, config: Mapping[str, Any], layer: Layer, owner: str) -> tuple[str, str]:
    """Put a layer's files into a container and commit it; give the image's ID and its last layer's diffID.

    The engine makes the layer, with the times of this run: its diffID is not reproducible. Old bytecode is removed by
    the image's own interpreter.

    Raises:
        Failure: the engine refuses.
    """
    settings = config["config"]
    code = "import os, sys; [os.remove(path) for path in sys.argv[1:]]"
    command = ["-c", code, *(f"/{path}" for path in layer.removed)]
    python = provenance_of(Base(base.ref, base.id, config)).python
    with container(client, base.id, owner, [python], command) as made, naming("cannot commit", base.ref):
        client.api.put_archive(made, "/", _files_of(layer))
        if layer.removed:
            client.api.start(made)
            ended = client.api.wait(made)["StatusCode"]
            if ended:
                raise Failure(Problem("cannot remove bytecode", base.ref, f"{python} ends with exit code {ended}"))
        # The container's own command must not become the image's.
        image = str(client.api.commit(made, conf=settings)["Id"])
        return image, str(client.api.inspect_image(image)["RootFS"]["Layers"][-1])


def _files_of(layer: Layer) -> bytes:
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer.blob))) as source,
        tarfile.open(fileobj=out, mode="w") as files,
    ):
        for member in source:
            if not member.name.rpartition("/")[2].startswith(WHITEOUT):
                files.addfile(member, source.extractfile(member))
    return out.getvalue()
