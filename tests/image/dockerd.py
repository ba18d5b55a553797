"""A Docker engine for the tests, independent of any other."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE = 60


def missing() -> str:
    """Return what this machine lacks to start an engine, "" if nothing."""
    if os.geteuid():
        return "only root can start a Docker engine"
    return "" if shutil.which("dockerd") else "there is no dockerd: .ci/run installs one"


@contextmanager
def docker_engine(folder: Path) -> Iterator[str]:
    """Start an engine that stores everything in `folder`; yield its address, and stop it at the end.

    It has no bridge and touches no firewall, so it runs beside any other; containers have network `none` or
    `host`.
    """
    socket = folder / "sock"
    places = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
    quiet = ["--bridge=none", "--iptables=false", "--ip-masq=false", f"--host=unix://{socket}"]
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(["dockerd", *places, *quiet], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait(started, socket, folder / "log")
        yield f"unix://{socket}"
    finally:
        started.terminate()
        started.wait(_PATIENCE)


def _wait(started: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    import docker

    for _ in range(_PATIENCE * 10):
        if socket.exists():
            try:
                docker.DockerClient(base_url=f"unix://{socket}").close()
                if docker.DockerClient(base_url=f"unix://{socket}").ping():
                    return
            except docker.errors.DockerException:
                pass
        if started.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"the engine does not come up:\n{log.read_text('utf-8', 'replace')[-2000:]}")
