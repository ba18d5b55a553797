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
from vpatch.image.model import Base, Layer
from vpatch.image.tar import WHITEOUT

if TYPE_CHECKING:
    from docker import DockerClient


_KEPT = ("Entrypoint", "Cmd", "Env", "User", "WorkingDir")


def commit(client: DockerClient, base: Base, config: Mapping[str, Any], layer: Layer, owner: str) -> tuple[str, str]:
    """Put a layer's files into a container and commit it; give the image's ID and its last layer's diffID.

    The engine makes the layer, with the times of this run: its diffID is not reproducible. Old bytecode is removed by
    the image's own interpreter.

    Raises:
        Failure: the engine refuses.
    """
    settings = config["config"]
    code = "import os, sys; [os.remove(path) for path in sys.argv[1:]]"
    python = provenance_of(Base(base.ref, base.id, config)).python
    # All of it is the entry point: a command of the container's would come into the image where that has none. Nothing
    # but the files goes, and it leaves no bytecode of its own; the base's user may not be allowed to.
    run = [python, "-I", "-S", "-B", "-c", code, *(f"/{path}" for path in layer.removed)]
    with (
        # Files and folders may be another user's.
        container(
            client,
            base.id,
            owner,
            run,
            [],
            user="0" if settings.get("User") else None,
            cap_add=["DAC_OVERRIDE", "FOWNER"],
        ) as made,
        naming("cannot commit", base.ref),
    ):
        client.api.put_archive(made, "/", _files_of(layer))
        if layer.removed:
            client.api.start(made)
            ended = client.api.wait(made)["StatusCode"]
            if ended:
                raise Failure(Problem("cannot remove bytecode", base.ref, f"{python} ends with exit code {ended}"))
        wanted = {**settings, "Entrypoint": settings.get("Entrypoint") or [], "User": settings.get("User") or ""}
        image = str(client.api.commit(made, conf=wanted)["Id"])
        there = client.api.inspect_image(image)
        if other := [key for key in _KEPT if (there["Config"].get(key) or None) != (settings.get(key) or None)]:
            client.api.remove_image(image, noprune=True)
            raise Failure(Problem("cannot commit", base.ref, f"the engine changes {', '.join(other)}"))
        return image, str(there["RootFS"]["Layers"][-1])


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
