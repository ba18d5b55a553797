"""Run scripts in confined containers, which live no longer than this run, even if it is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import IO, Any

import requests
from docker import DockerClient
from docker.errors import DockerException, NotFound
from docker.types import LogConfig

from vpatch.core.overlay import Catalogued
from vpatch.errors import Failure, Problem
from vpatch.image.checks import Check, import_outcomes, outcome
from vpatch.image.config import read_json
from vpatch.image.engine.client import engine_errors, message_of
from vpatch.image.patch import Provenance

NAME = "vpatch-"
"""Prefix of our containers' names; the name of their run follows. A label would stay in a committed image."""

PROCESSES = 4096  # threads included: torch starts one for each core, and a server has several processes
MEMORY = 16 << 30  # bytes, files in memory included: all that vLLM imports
LOG = 16 << 20  # bytes of its output that are kept
SCRATCH = 8 << 30  # bytes that a script may write below /tmp, which count as memory
SERVER_MEMORY = 64 << 30  # bytes for a server of a small model on GPUs
_TIMEOUT = 600  # seconds: a cold import of vLLM from a slow disk
_GPU_TIMEOUT = 1800  # seconds: a server that compiles kernels before its first answer

# The root is read-only, so the home, which holds caches, moves to /tmp. The user's site-packages stay where they are:
# Python has found them before it runs this.
_PREAMBLE = """\
import os, site, sys
os.environ.update(HOME="/tmp", TMPDIR="/tmp", PYTHONUSERBASE=site.getuserbase())
exec(compile(sys.argv.pop(1), "<string>", "exec", dont_inherit=True))
"""


class LeftError(Failure):
    """A container could not be removed; the reaper is to try again."""


@dataclass(frozen=True)
class Run:
    """A run of this program: `name` is in the names of its containers, `reaper` is the pipe to the second process."""

    name: str
    reaper: IO[bytes]

    def register(self, image: str) -> None:
        """Have the reaper remove an image too, unless it has a tag by then. Call this before the image exists."""
        with suppress(BrokenPipeError):
            self.reaper.write(f"{image}\n".encode())
            self.reaper.flush()


@contextmanager
def start_run() -> Iterator[Run]:
    """Start a run. A second process, the reaper, removes what this one leaves when it dies."""
    owner = uuid.uuid4().hex
    # As a file, without its folder on the path: as a module it would import all of vpatch while this run needs the CPU.
    command = [sys.executable, "-P", str(files("vpatch.image.engine") / "reap.py"), owner]
    reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    # The reaper acts if the pipe ends without "done": this process died, or an unknown container may exist.
    last = b""
    try:
        assert reaper.stdin  # noqa: S101 - for mypy
        yield Run(owner, reaper.stdin)
        last = b"done\n"
    except LeftError:
        raise
    except Exception:
        last = b"done\n"
        raise
    finally:
        with suppress(BrokenPipeError):
            reaper.communicate(last)


@contextmanager
def container(
    client: DockerClient,
    image: str,
    owner: str,
    entrypoint: Sequence[str],
    command: Sequence[str] = (),
    *,
    user: str | None = None,
    **settings: Any,
) -> Iterator[str]:
    """Create a container and yield its ID; remove it at the end, running or not.

    It runs untrusted code: it has no network, no capabilities beyond those in `settings`, and no way to gain any.
    """
    memory = settings.pop("mem_limit", MEMORY)
    limits = client.api.create_host_config(
        network_mode="none",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        pids_limit=PROCESSES,
        mem_limit=memory,
        memswap_limit=memory,
        # Its output is read from its log, whatever log driver the engine is set to.
        log_config=LogConfig(type="json-file", config={"max-size": str(LOG), "max-file": "1"}),
        **settings,
    )
    with engine_errors("cannot create a container", image):
        made = client.api.create_container(
            image,
            list(command),
            entrypoint=list(entrypoint),
            host_config=limits,
            user=user,
            name=f"{NAME}{owner}-{uuid.uuid4().hex[:8]}",
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


@dataclass(frozen=True)
class ScriptResult:
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
        # Compiled kernels are loaded from /tmp, hence `exec`.
        settings: dict[str, Any] = {"read_only": True, "tmpfs": {"/tmp": f"exec,mode=1777,size={SCRATCH}"}}  # noqa: S108
        if gpus:
            settings["device_requests"] = [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]
            settings["mem_limit"] = SERVER_MEMORY
        command = ["-c", _PREAMBLE, script, *arguments]
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
            out, err = (
                self.client.api.logs(made, stdout=one, stderr=not one).decode("utf-8", "replace")
                for one in (True, False)
            )
            return ScriptResult(code, out, err)

    @contextmanager
    def _volumes(self) -> Iterator[dict[str, Any]]:
        """Yield settings that make the volumes that the image declares read-only, with the image's content.

        An engine mounts a new volume for each, writable without a limit, and no setting makes those read-only. But the
        volumes of another container can be mounted read-only: of one that is never started.
        """
        with engine_errors("cannot read", self.image):
            declared = (self.client.api.inspect_image(self.image)["Config"] or {}).get("Volumes")
        if not declared:
            yield {}
            return
        with container(self.client, self.image, self.owner, ["true"]) as made:
            yield {"volumes_from": [f"{made}:ro"]}


def run_checks(
    runner: ScriptRunner, provenance: Provenance, tests: frozenset[str], installed: Sequence[Catalogued]
) -> Iterator[Check]:
    """Run those tests of an image that `tests`, as in an `Order`, has.

    Probes are those of the `installed` overlays whose changes are in the image.
    """
    guest = (files("vpatch.image.guest") / "checks.py").read_text("utf-8")
    if tests:
        yield from _check_files(runner, guest, provenance)
    if "containers" in tests:
        ran = runner.run(guest, ["imports", json.dumps(provenance.modules)], seconds=_TIMEOUT)
        yield from import_outcomes(provenance.modules, ran.code, ran.out, ran.err, _TIMEOUT)
    for item in (item for item in installed if item.id in provenance.applied):
        for probe in item.overlay.probes:
            if ("gpus" if probe.gpu else "containers") in tests:
                seconds = _GPU_TIMEOUT if probe.gpu else _TIMEOUT
                ran = runner.run(probe.script, seconds=seconds, gpus=probe.gpu)
                yield outcome(f"probe {probe.name}", ran.code, ran.err, seconds)


def _check_files(runner: ScriptRunner, guest: str, provenance: Provenance) -> Iterator[Check]:
    question = {"root": provenance.root, "dist_info": provenance.dist_info, "provenance": provenance.text}
    ran = runner.run(guest, ["files", json.dumps(question)], seconds=_TIMEOUT)
    try:
        yield from [Check(*answer) for answer in read_json(ran.out.splitlines()[-1])]
    except (ValueError, IndexError, TypeError):
        why = (ran.err.strip().splitlines() or [f"{runner.python} ends with exit code {ran.code}"])[-1]
        yield Check("files", ok=False, because=why)
