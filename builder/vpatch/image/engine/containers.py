"""Containers, and images that are not tested yet, live no longer than this run, even where it is killed."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import IO, TYPE_CHECKING, Any

import requests
from docker.errors import DockerException, NotFound
from docker.types import LogConfig

from vpatch.errors import Failure, Problem
from vpatch.image.engine.client import naming, said

if TYPE_CHECKING:
    from docker import DockerClient

NAME = "vpatch-"
"""How the names of our containers begin; then comes the run that they belong to. A label would stay in an image."""

DONE = b"done\n"
"""What a run tells the process that removes what it leaves, when it leaves nothing. Before come IDs of images."""

PROCESSES = 4096  # threads included: torch starts one for each core, and a server has several processes
MEMORY = 16 << 30  # bytes, files in memory included: all that vLLM imports
LOG = 16 << 20  # bytes of what it prints that are kept


class LeftError(Failure):
    """A container could not be removed: the second process is to try."""


@dataclass(frozen=True)
class Run:
    """A run of this program. `name` is in the names of its containers; `reaper` leads to the second process."""

    name: str
    reaper: IO[bytes]

    def makes(self, image: str) -> None:
        """Name an image that goes too if this process dies, unless it has a tag by then. Said before it is there."""
        with suppress(BrokenPipeError):
            self.reaper.write(f"{image}\n".encode())
            self.reaper.flush()


@contextmanager
def run_of_its_own() -> Iterator[Run]:
    """Begin a run. A second process removes what is left of it when this one is gone."""
    owner = uuid.uuid4().hex
    # As a file, without its folder on the path: as a module it would import all of vpatch, at the expense of this run.
    command = [sys.executable, "-P", str(files("vpatch.image.engine") / "reap.py"), owner]
    reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    # It hears the end of the pipe when this process dies, or when a container may have come to be that nobody named.
    last = b""
    try:
        assert reaper.stdin  # noqa: S101 - for mypy
        yield Run(owner, reaper.stdin)
        last = DONE
    except LeftError:
        raise
    except Exception:
        last = DONE
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
    command: Sequence[str],
    *,
    user: str | None = None,
    **settings: Any,
) -> Iterator[str]:
    """Create a container; yield its ID. It is removed at the end, running or not.

    It has no network, no capabilities beyond those in `settings`, and no way to get any. What runs in it is code that
    nobody vouches for.

    Raises:
        Failure: the engine refuses.
    """
    memory = settings.pop("mem_limit", MEMORY)
    limits = client.api.create_host_config(
        network_mode="none",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        pids_limit=PROCESSES,
        mem_limit=memory,
        memswap_limit=memory,
        # What it says is read from its log, whatever the engine's own settings make of logs.
        log_config=LogConfig(type="json-file", config={"max-size": str(LOG), "max-file": "1"}),
        **settings,
    )
    with naming("cannot create a container", image):
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
            raise LeftError(Problem("cannot remove a container", str(made)[:12], said(error))) from error
