"""Confined containers, which live no longer than this run, even if it is killed; scripts run in them."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import requests
from docker import DockerClient, from_env
from docker.errors import APIError, DockerException, NotFound
from docker.types import LogConfig

from vpatch.errors import Failure, Problem
from vpatch.image.config import NoGpusError
from vpatch.image.engine import discard, engine_errors, message_of
from vpatch.script import preamble

NAME = "vpatch-"
"""Prefix of our containers' names; the name of their run follows. A label would stay in a committed image."""

PROCESSES = 4096  # threads included: torch starts one for each core, and a server has several processes
MEMORY = 16 << 30  # bytes, files in memory included: all that vLLM imports
LOG = 16 << 20  # bytes of its output that are kept
SCRATCH = 8 << 30  # bytes that a script may write below /tmp, which count as memory
SERVER_MEMORY = 64 << 30  # bytes for a server of a small model on GPUs
ALL_GPUS: dict[str, Any] = {"device_requests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]}

_NO_TOOLKIT = re.compile(r"could not select device driver|unresolvable cdi devices|gpu vendor", re.IGNORECASE)
_NO_DRIVER = re.compile(r"nvidia|nvml", re.IGNORECASE)
_TOOLKIT = (
    "install the NVIDIA Container Toolkit, run `sudo nvidia-ctk runtime configure --runtime=docker` and restart the "
    "engine; or leave out --gpus"
)

# It imports vpatch only after this process has died: until then this one needs the CPU.
REAPER = """\
import sys
images = sys.stdin.read().splitlines()
if "done" not in images:
    from vpatch.image.engine.containers import reap
    reap(sys.argv[1], images)
"""
# A container that was being created when the process died may appear a little later.
_ATTEMPTS, _PAUSE = 4, 0.5


class LeftError(Failure):
    """A container could not be removed; the reaper is to try again."""


@dataclass(frozen=True)
class Run:
    """A run of this program."""

    name: str  # in the names of its containers
    reaper: IO[bytes]  # pipe to the second process

    def register(self, image: str) -> None:
        """Have the reaper remove an image too, unless it has a tag by then. Call this before the image exists."""
        with suppress(BrokenPipeError):
            self.reaper.write(f"{image}\n".encode())
            self.reaper.flush()


@contextmanager
def start_run() -> Iterator[Run]:
    """Start a run. A second process, the reaper, removes what this one leaves when it dies."""
    owner = uuid.uuid4().hex
    command = [sys.executable, "-P", "-c", REAPER, owner]
    reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    # The reaper acts if the pipe ends without "done": this process died, or an unknown container may exist.
    last = b""
    try:
        assert reaper.stdin  # noqa: S101 - for mypy
        yield Run(owner, reaper.stdin)
        last = b"done\n"
    except Exception as error:
        last = b"" if isinstance(error, LeftError) else b"done\n"
        raise
    finally:
        with suppress(BrokenPipeError):
            reaper.communicate(last)


def reap(owner: str, images: Iterable[str]) -> None:
    """Remove the containers of the run `owner`, and those of `images` that have no tag."""
    for _ in range(_ATTEMPTS):
        with suppress(DockerException, requests.RequestException):
            client = from_env()
            for left in client.api.containers(all=True, filters={"name": f"{NAME}{owner}"}):
                client.api.remove_container(left["Id"], force=True, v=True)
            for image in images:
                with suppress(Failure):
                    discard(client, image)
        time.sleep(_PAUSE)


@contextmanager
def container(
    client: DockerClient, image: str, owner: str, entrypoint: Sequence[str], command: Sequence[str] = (), **options: Any
) -> Iterator[str]:
    """Create a container and yield its ID; remove it at the end, running or not."""
    # It runs untrusted code: no network, no capabilities beyond those in `options`, and no way to gain any.
    user, memory = options.pop("user", None), options.pop("memory", MEMORY)
    confined: dict[str, Any] = {"network_mode": "none", "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}
    confined |= {"pids_limit": PROCESSES, "mem_limit": memory, "memswap_limit": memory}
    # Its output is read from its log, whatever log driver the engine is set to.
    log = LogConfig(type="json-file", config={"max-size": str(LOG), "max-file": "1"})
    limits = client.api.create_host_config(**confined, log_config=log, **options)
    name = f"{NAME}{owner}-{uuid.uuid4().hex[:8]}"
    with engine_errors("cannot create a container", image):
        made = client.api.create_container(
            image, list(command), entrypoint=list(entrypoint), user=user, host_config=limits, name=name
        )["Id"]
    try:
        yield str(made)
    finally:
        try:
            client.api.remove_container(made, force=True, v=True)
        except NotFound:
            pass
        except (DockerException, requests.RequestException) as error:
            raise LeftError(Problem("cannot remove a container", str(made)[:12], message_of(error))) from error


def require_gpus(client: DockerClient, image: str, owner: str, python: str) -> None:
    """Start a container with all GPUs, before anything is built.

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
                reason = " ".join(text[found.start() :].split())[:300]
                why = f"{reason}: `nvidia-smi` shows whether the driver works; or leave out --gpus"
                raise NoGpusError(Problem("no GPUs", "docker engine", why)) from error


class ScriptResult(NamedTuple):
    """How a script ended: its exit code, None if it took too long, and its output."""

    code: int | None
    out: str
    err: str


@dataclass(frozen=True)
class ScriptRunner:
    """Runs scripts with an image's own interpreter."""

    client: DockerClient
    image: str
    python: str
    owner: str

    def run(self, script: str, arguments: Sequence[str] = (), *, seconds: int, gpus: bool = False) -> ScriptResult:
        """Run a script as `python -c`, with all of the machine's GPUs or none. It can write only below /tmp."""
        # Compiled kernels are loaded from /tmp, hence `exec`. The root is read-only, so the home moves there.
        settings: dict[str, Any] = {"read_only": True, "tmpfs": {"/tmp": f"exec,mode=1777,size={SCRATCH}"}}  # noqa: S108
        if gpus:
            settings |= {**ALL_GPUS, "memory": SERVER_MEMORY}
        command = ["-c", preamble("/tmp"), script, *arguments]  # noqa: S108
        with (
            self._volumes() as volumes,
            container(self.client, self.image, self.owner, [self.python], command, **settings, **volumes) as made,
            engine_errors("cannot run", self.image),
        ):
            self.client.api.start(made)
            try:
                code = self.client.api.wait(made, timeout=seconds)["StatusCode"]
            except (requests.ConnectionError, requests.ReadTimeout):  # either, depending on the kind of socket
                code = None
            logs = [self.client.api.logs(made, stdout=one, stderr=not one) for one in (True, False)]
            return ScriptResult(code, *(log.decode("utf-8", "replace") for log in logs))

    @contextmanager
    def _volumes(self) -> Iterator[dict[str, Any]]:
        # The volumes that the image declares are to be read-only, with the image's content. An engine mounts a new,
        # writable one for each; only those of another container can be mounted read-only.
        with engine_errors("cannot read", self.image):
            declared = (self.client.api.inspect_image(self.image)["Config"] or {}).get("Volumes")
        if not declared:
            yield {}
            return
        with container(self.client, self.image, self.owner, ["true"]) as made:
            yield {"volumes_from": [f"{made}:ro"]}
