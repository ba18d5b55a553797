"""The engine of the tests ends with them, however they end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.image.servers import ENGINE
from tests.image.standin import archive, libraries
from tests.needs import need
from tests.processes import ending, processes

TESTS = """
import sys
from pathlib import Path
import docker
from tests.image.servers import docker_engine
from tests.image.standin import imported
folder, tar = map(Path, sys.argv[1:])
with docker_engine(folder) as address:
    client = docker.DockerClient(base_url=address)
    imported(client, tar, "try:sleep")
    made = client.containers.run("try:sleep", ["infinity"], entrypoint="/bin/sleep", network_mode="none", detach=True,
        stop_signal="SIGKILL")  # it heeds no other
    made.reload()
    print(made.attrs["State"]["Pid"], flush=True)
    sys.stdin.read()
"""


def test_killed(tmp_path: Path) -> None:  # a short name: it is in the paths of sockets
    need(*ENGINE)
    root = tmp_path / "root"
    for file in ("/bin/sleep", *libraries("/bin/sleep")):
        (root / file.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(Path(file).resolve(), root / file.lstrip("/"))
    tar, folder = archive(tmp_path / "tar", (root, "")), tmp_path / "e"
    folder.mkdir()
    command = [sys.executable, "-c", TESTS, str(folder), str(tar)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
    ) as tests:
        assert tests.stdout
        container = int(tests.stdout.readline())
        servers = processes(str(folder))
        servers.remove(tests.pid)
        assert len(servers) >= 3, "the engine, containerd and the container's shim"
        with ending(container, *servers) as wait:
            tests.kill()
            wait()
