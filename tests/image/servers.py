"""A Docker engine and registries for the tests, independent of any other; they end with the process of the tests."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from tests.processes import PATIENCE

ENGINE = ("root", "dockerd", "setpriv")
"""What `tests.needs` is to find for an engine."""
# A process of dockerd for each archive it sends takes a fifth less.
_THRIFTY = {"GOGC": "800", "GOMAXPROCS": "1"}


@contextmanager
def docker_engine(folder: Path) -> Iterator[str]:
    """Start an engine that stores everything in `folder`; yield its address, and stop it at the end.

    It has no bridge and touches no firewall, so it runs beside any other; containers have network `none` or
    `host`.
    """
    address = f"unix://{folder}/sock"
    places = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
    quiet = ["--bridge=none", "--iptables=false", "--ip-masq=false", f"--host={address}"]
    with _serving(["dockerd", *places, *quiet], r"API listen on (\S+/sock)"):
        yield address


@contextmanager
def docker_registry(folder: Path, more: str) -> Iterator[str]:
    """Run a registry in `folder`, on a free port; yield `host:port`. `more` is appended to its configuration."""
    folder.mkdir(exist_ok=True)
    config = folder / "config.yml"
    config.write_text(
        "version: 0.1\n"
        "log: {level: info, accesslog: {disabled: true}}\n"
        f'storage: {{filesystem: {{rootdirectory: "{folder}/data"}}, delete: {{enabled: true}}}}\n'
        'http: {addr: "127.0.0.1:0", secret: loopback}\n' + more
    )
    with _serving(["docker-registry", "serve", str(config)], r"listening on (127\.0\.0\.1:\d+)") as host:
        yield host


@contextmanager
def _serving(command: list[str], ready: str) -> Iterator[str]:
    """Run a server until the end; yield what `ready` finds in its log once it can be reached.

    Only this process stops it: an interrupt by the terminal does not reach it. If this process is killed, so is it.
    """
    last: deque[str] = deque(maxlen=20)
    reached: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        with process.stdout as log:  # type: ignore[union-attr]
            for line in log:
                last.append(line)
                if found := re.search(ready, line):
                    reached.put(found[1])
        reached.put("")

    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", "--", *command],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **_THRIFTY},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        threading.Thread(target=read, daemon=True).start()
        place = reached.get(timeout=PATIENCE)
        assert place, f"{command[0]} does not come up:\n{''.join(last)}"
        yield place
    finally:
        process.terminate()
        process.wait(PATIENCE)
