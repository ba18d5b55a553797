"""A Ray cluster on this machine: each node is a process with ports and a folder of its own, ended by its id."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.releases import tree_of
from tests.run.conftest import Installed, install
from tests.validation.cpu.environment import with_ray

LONGEST_S = 180.0
"""What hangs longer fails: a driver whose workers cannot start waits for them without an end."""

STARTED = "Ray runtime started."
REAL = ("vllm/envs.py", "vllm/logger.py", "vllm/logging_utils", "vllm/plugins")
"""What a worker runs of vLLM before it needs torch."""


@dataclass(frozen=True)
class Node:
    """A running node of a cluster, or the head: `ray start --block` ends what it started when it is ended."""

    process: subprocess.Popen[str]
    address: str


def machine(top: Path, release: Path) -> Installed:
    """Make an environment with Ray and a vLLM without torch: the files of overlays, and those in `REAL`."""
    made = install(top, release)
    packages = made.root
    (packages / "ray.pth").write_text(f"{with_ray()}\n")
    script = f"#!{made.python}\nimport sys\nfrom ray.scripts.scripts import main\nsys.exit(main())\n"
    (top / "env/bin/ray").write_text(script)
    (top / "env/bin/ray").chmod(0o755)
    whole = tree_of("0.20.2")
    for name in REAL:
        shutil.rmtree(packages / name, ignore_errors=True)
        (packages / name).unlink(missing_ok=True)
        copy = shutil.copytree if (whole / name).is_dir() else shutil.copy
        copy(whole / name, packages / name)
    (packages / "vllm/__init__.py").unlink()
    (packages / "vllm/__init__.py").touch()
    return made


def environ(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a process of Ray: none of Ray, Python or vpatch but these."""
    foreign = ("RAY_", "PYTHON", "VPATCH_", "COVERAGE_", "VLLM_", "UV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", **(more or {})}


def start_words(folder: Path, name: str, head: str = "") -> list[str]:
    """Return the arguments of `ray start`, of the head, or of another node of the cluster at `head`.

    The node's name is a resource, by which a driver asks for it.
    """
    port, *others = _free_ports(6)
    names = ("node-manager", "object-manager", "dashboard-agent-listen", "runtime-env-agent", "metrics-export")
    where = [f"--address={head}"] if head else ["--head", f"--port={port}", "--include-dashboard=false"]
    return [
        *("start", "--block", "--disable-usage-stats", "--num-cpus=2", "--node-ip-address=127.0.0.1"),
        *where,
        f"--temp-dir={folder}",
        f"--resources={json.dumps({name: 8})}",
        "--object-store-memory=80000000",
        *("--min-worker-port=0", "--max-worker-port=0"),
        *(f"--{which}-port={number}" for which, number in zip(names, others, strict=True)),
    ]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in opened]


@contextmanager
def node(command: Sequence[str | Path], words: Sequence[str], environment: Mapping[str, str]) -> Iterator[Node]:
    """Run a node until the block ends; `words` are from `start_words`."""
    with tempfile.TemporaryFile("w+") as said:
        whole = [*map(str, command), *words]
        process = subprocess.Popen(
            whole, stdout=subprocess.PIPE, stderr=said, text=True, env=dict(environment), cwd="/"
        )
        try:
            assert process.stdout
            if not _is_started(process.stdout):
                said.seek(0)
                raise AssertionError(f"no node: {said.read()}")
            yield Node(process, next((f"127.0.0.1:{word[7:]}" for word in words if word.startswith("--port=")), ""))
        finally:
            process.terminate()
            try:
                process.communicate(timeout=LONGEST_S)
            finally:
                process.kill()


def _is_started(output: IO[str]) -> bool:
    """Wait for the line that says so, or the end of the process."""
    return any(STARTED in line for line in output)
