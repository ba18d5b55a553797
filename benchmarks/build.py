"""Time `vpatch build`, with an engine and without, next to the usual Dockerfile on the same base.

    python -m benchmarks.build [--pairs N] [--megabytes N]

The Dockerfile copies a patcher into the image and runs it there. The patcher is vpatch itself with its dependencies,
so that both apply the same overlays. The engine's own builder runs the Dockerfile, without its cache.

Everything runs in one session, on an engine and a registry of its own, which need root and are stopped at the end.
Each pair is the Dockerfile and both variants of `vpatch build`, alternating forwards and backwards. Each build is a
separate process; tests are left out, as the Dockerfile has none. A first pair warms the caches and does not count.
Figures are medians. The targets: with the engine at most 0.7 x the Dockerfile's time and 0.05 x the bytes that it
adds to the image on disk (by `docker history`); without an engine at most 0.5 x the time. The targets are for people
to read; the exit code only reports whether every build succeeded.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import docker
import requests

from benchmarks.base import STEPS, VERSION, load_base
from tests.image.servers import ENGINE, docker_engine, docker_registry
from tests.image.standin import SITE
from tests.needs import lacking

ROOT = Path(__file__).parents[1]
BASE = f"vllm/vllm-openai:v{VERSION}"
DOCKERFILE = f"""
FROM {BASE}
COPY patcher /tmp/patcher
RUN PYTHONPATH=/tmp/patcher python3 -m vpatch apply /{SITE}
"""
MANIFESTS = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"

TARGETS = {"engine: time": 0.7, "engine: bytes": 0.05, "registry: time": 0.5}


class Run(NamedTuple):
    """Seconds to build and, for the Dockerfile, to push; bytes added on the engine's disk and in the registry."""

    seconds: float
    push: float
    disk: int
    stored: int


@dataclass(frozen=True)
class Session:
    """The engine at `address` and the registry at `host`, both of which have the base."""

    client: docker.DockerClient
    address: str
    host: str
    context: Path

    def dockerfile(self, number: int) -> Run:
        """Build by Dockerfile, and push."""
        name = f"{self.host}/dockerfile-{number}:x"
        built = _timed(
            lambda: self.client.images.build(path=str(self.context), tag=name, nocache=True, network_mode="none")
        )
        pushed = _timed(lambda: self.push(name))
        return Run(built, pushed, self.disk(name), self.stored(name))

    def engine(self, number: int) -> Run:
        """Build by vpatch with the engine."""
        name = f"{self.host}/engine-{number}:x"
        built = _timed(lambda: self.vpatch("--base", BASE, "--tag", name))
        self.push(name)
        return Run(built, 0, self.disk(name), self.stored(name))

    def registry(self, number: int) -> Run:
        """Build by vpatch without an engine."""
        name = f"{self.host}/registry-{number}:x"
        built = _timed(lambda: self.vpatch("--registry", "--base", f"{self.host}/{BASE}", "--tag", name))
        return Run(built, 0, 0, self.stored(name))

    def vpatch(self, *options: str) -> None:
        """Run `vpatch build` as a separate process."""
        command = [sys.executable, "-m", "vpatch", "build", *options, "--no-test", "--json"]
        ran = subprocess.run(
            command, env={**os.environ, "DOCKER_HOST": self.address}, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise SystemExit(f"{' '.join(command)}: exit {ran.returncode}: {ran.stderr}")

    def push(self, name: str) -> None:
        """Push an image."""
        for line in self.client.api.push(name, stream=True, decode=True):
            if "error" in line:
                raise SystemExit(f"cannot push {name}: {line['error']}")

    def disk(self, name: str) -> int:
        """Return how many more bytes an image has than the base on the engine's disk; remove the image."""
        new, old = (self.client.api.inspect_image(one)["Size"] for one in (name, BASE))
        self.client.api.remove_image(name, force=True)
        return int(new - old)

    def stored(self, name: str) -> int:
        """Return the compressed size of an image's new layers in the registry, in bytes."""
        path, _, tag = name.removeprefix(f"{self.host}/").rpartition(":")
        url = f"http://{self.host}/v2/{path}/manifests/{tag}"
        answer = requests.get(url, headers={"Accept": MANIFESTS}, timeout=60)
        answer.raise_for_status()
        return sum(layer["size"] for layer in answer.json()["layers"][len(STEPS) :])


def _timed(what: Callable[[], object]) -> float:
    os.sync()  # otherwise this run would pay for what earlier ones left unwritten
    start = time.perf_counter()
    what()
    return time.perf_counter() - start


def patcher(folder: Path) -> None:
    """Install vpatch and its dependencies into a folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "--no-build-isolation", "--target", folder, ROOT], check=True)


def main() -> int:
    """Make the base, run the pairs, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=600, help="size of the base")
    options = parser.parse_args()
    if lacks := lacking(*ENGINE):
        raise SystemExit(f"needs {lacks}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "engine").mkdir()
        address = stack.enter_context(docker_engine(folder / "engine"))
        host = stack.enter_context(docker_registry(folder / "registry", ""))
        client = docker.DockerClient(base_url=address, timeout=600)
        stack.callback(client.close)
        session = Session(client, address, host, folder / "context")
        patcher(session.context / "patcher")
        (session.context / "Dockerfile").write_text(DOCKERFILE)
        load_base(client, folder / "base", BASE, options.megabytes)
        shutil.rmtree(folder / "base")
        client.api.tag(BASE, f"{host}/{BASE.rpartition(':')[0]}", BASE.rpartition(":")[2])
        session.push(f"{host}/{BASE}")
        size = client.api.inspect_image(BASE)["Size"]
        print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; ", end="")
        print(f"engine {client.version()['Version']}, base of {size / 1e6:.0f} MB in {len(STEPS)} layers")
        ways: Mapping[str, Callable[[int], Run]] = {
            "Dockerfile": session.dockerfile,
            "engine": session.engine,
            "registry": session.registry,
        }
        runs: dict[str, list[Run]] = {name: [] for name in ways}
        for number in range(options.pairs + 1):
            for name in list(ways)[:: 1 if number % 2 else -1]:
                run = ways[name](number)
                if number:
                    runs[name].append(run)
        show(runs)
    return 0


def show(runs: Mapping[str, Sequence[Run]]) -> None:
    """Print every figure, the medians, their ratios to the Dockerfile's, and whether each target is met."""
    rival, engine, registry = runs.values()
    alone, pushed = [run.seconds for run in rival], [run.seconds + run.push for run in rival]
    ours, without = [run.seconds for run in engine], [run.seconds for run in registry]
    print("seconds")
    _row("Dockerfile", alone)
    _row("Dockerfile and push", pushed)
    engine_time = _row("vpatch build", ours, alone)
    registry_time = _row("vpatch build --registry", without, alone)
    _row("  beside build and push", without, pushed)
    print("kB added on the engine's disk")
    disk = [run.disk / 1000 for run in rival]
    _row("Dockerfile", disk)
    engine_bytes = _row("vpatch build", [run.disk / 1000 for run in engine], disk)
    print("kB added in the registry, compressed")
    stored = [run.stored / 1000 for run in rival]
    _row("Dockerfile", stored)
    _row("vpatch build", [run.stored / 1000 for run in engine], stored)
    _row("vpatch build --registry", [run.stored / 1000 for run in registry], stored)
    for (name, limit), found in zip(TARGETS.items(), (engine_time, engine_bytes, registry_time), strict=True):
        print(f"{name} at most {limit} x: {found:.3f} x, {'met' if found <= limit else 'missed'}")


def _row(name: str, figures: Sequence[float], rival: Sequence[float] = ()) -> float:
    """Print a row; return the ratio of its median to the rival's, or 1."""
    ratio = median(figures) / median(rival or figures)
    said = " ".join(f"{figure:8.2f}" for figure in figures)
    pairs = sorted(ours / theirs for ours, theirs in zip(figures, rival, strict=False))
    more = f" {ratio:.3f} x (pairs {pairs[0]:.3f} to {pairs[-1]:.3f})" if pairs else ""
    print(f"{name:25} {said} | median {median(figures):8.2f}{more}")
    return ratio


if __name__ == "__main__":
    sys.exit(main())
