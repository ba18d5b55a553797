"""Run a script in a container of an image, by the image's own interpreter, without a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import requests

from vpatch.image.engine.client import naming
from vpatch.image.engine.containers import container

if TYPE_CHECKING:
    from docker import DockerClient


SCRATCH = 8 << 30  # bytes that may be written below /tmp, which count as memory
SERVER_MEMORY = 64 << 30  # bytes for a server of a small model on GPUs

# The root is read-only. Caches are kept in the home, so that moves. Packages that a user installed there do not: Python
# finds them before it runs this.
_BEGIN = """\
import os, site, sys
os.environ.update(HOME="/tmp", TMPDIR="/tmp", PYTHONUSERBASE=site.getuserbase())
exec(compile(sys.argv.pop(1), "<string>", "exec", dont_inherit=True))
"""


@dataclass(frozen=True)
class Ran:
    """How a script ended: its exit code, None where it took longer than it may, and what it printed."""

    code: int | None
    out: str
    err: str


@dataclass(frozen=True)
class Inside:
    """Where scripts run: an image, and its interpreter."""

    client: DockerClient
    image: str
    python: str
    owner: str

    def run(self, script: str, arguments: Sequence[str] = (), *, seconds: int, gpus: bool = False) -> Ran:
        """Run a script as `python -c`, with all of the machine's GPUs or none. It can write below /tmp only.

        Raises:
            Failure: the engine refuses.
        """
        # A compiled kernel is loaded from there.
        settings: dict[str, Any] = {"read_only": True, "tmpfs": {"/tmp": f"exec,mode=1777,size={SCRATCH}"}}  # noqa: S108
        if gpus:
            settings["device_requests"] = [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]
            settings["mem_limit"] = SERVER_MEMORY
        command = ["-c", _BEGIN, script, *arguments]
        with (
            self._volumes() as volumes,
            container(self.client, self.image, self.owner, [self.python], command, **settings, **volumes) as made,
            naming("cannot run", self.image),
        ):
            self.client.api.start(made)
            try:
                code = self.client.api.wait(made, timeout=seconds)["StatusCode"]
            except (requests.ConnectionError, requests.ReadTimeout):  # either, depending on the kind of socket
                code = None
            out, err = (
                self.client.api.logs(made, stdout=one, stderr=not one).decode("utf-8", "replace")
                for one in (True, False)
            )
            return Ran(code, out, err)

    @contextmanager
    def _volumes(self) -> Iterator[dict[str, Any]]:
        """Settings by which folders that the image declares as volumes are read-only, with what the image has there.

        An engine mounts a new volume for each, which can be written without a limit. It takes no setting that makes
        those read-only, but the volumes of another container can be mounted so: of one that is never started.
        """
        with naming("cannot read", self.image):
            declared = (self.client.api.inspect_image(self.image)["Config"] or {}).get("Volumes")
        if not declared:
            yield {}
            return
        with container(self.client, self.image, self.owner, ["true"], []) as made:
            yield {"volumes_from": [f"{made}:ro"]}


def script(name: str) -> str:
    """Give the source of a script in `vpatch.image.guest`."""
    return (files("vpatch.image.guest") / f"{name}.py").read_text("utf-8")
