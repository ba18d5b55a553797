"""Whether the engine gives containers the GPUs, asked before anything is built."""

from __future__ import annotations

import re

from docker import DockerClient
from docker.errors import APIError

from vpatch.errors import Problem
from vpatch.image.config import NoGpusError
from vpatch.image.engine import message_of
from vpatch.image.engine.containers import ALL_GPUS, container

_NO_TOOLKIT = re.compile(r"could not select device driver|unresolvable cdi devices|gpu vendor", re.IGNORECASE)
_NO_DRIVER = re.compile(r"nvidia|nvml", re.IGNORECASE)
_TOOLKIT = (
    "install the NVIDIA Container Toolkit, run `sudo nvidia-ctk runtime configure --runtime=docker` and restart the "
    "engine; or leave out --gpus"
)


def require_gpus(client: DockerClient, image: str, owner: str, python: str) -> None:
    """Start a container with all GPUs.

    Raises:
        NoGpusError: the engine has no NVIDIA runtime, or that one finds no driver. Other errors are left to the tests.
    """
    with container(client, image, owner, [python], ["-c", ""], **ALL_GPUS) as made:
        try:
            client.api.start(made)
        except APIError as error:
            text = str(error.explanation or error)
            if _NO_TOOLKIT.search(text):
                why = f"{message_of(error)}: {_TOOLKIT}"
                raise NoGpusError(Problem("no NVIDIA runtime", "docker engine", why)) from error
            if found := _NO_DRIVER.search(text):
                said = " ".join(text[found.start() :].split())[:300]
                why = f"{said}: `nvidia-smi` shows whether the driver works; or leave out --gpus"
                raise NoGpusError(Problem("no GPUs", "docker engine", why)) from error
