"""Workers of a real Ray cluster of several nodes on this machine run the farm, or do not run.

vLLM refuses Ray on a CPU, so `ray_driver.py` imitates its worker: the environment of the driver after its start, then
plugins, with vLLM's own code, then the worker extension. Each node is a process with its own ports and folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import rewrite
from tests.conftest import Trees
from tests.needs import need, root_only
from tests.run.cluster import LONGEST_S, environ, machine, node, start_words
from tests.run.conftest import Installed

pytestmark = pytest.mark.deep

DRIVER = Path(__file__).with_name("ray_driver.py")
DRIFT = (b"def create_engine_config", b"def create_another_config")
FILE = "vllm/engine/arg_utils.py"
MISSING = "ModuleNotFoundError: No module named 'vpatch_{}'"


@dataclass(frozen=True)
class Cluster:
    """A cluster, the machine that all its nodes are, a folder for drivers, and the farm of the default overlays."""

    address: str
    machine: Installed
    folder: Path
    farm: Path
    digest: str

    def run(
        self,
        *nodes: str,
        before: Sequence[str | Path] = (),
        python: Sequence[str | Path] = (),
        job: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Run a driver with a worker on each of some nodes; return what it prints.

        `before` are words in front of the command, such as `vpatch run --`; `job` is the runtime environment.
        """
        words = [*before, *(python or [self.machine.python]), DRIVER, self.address, ",".join(nodes), json.dumps(job)]
        how: dict[str, Any] = {"cwd": self.folder, "env": environ(env), "timeout": LONGEST_S}
        ran = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, **how)
        assert ran.returncode == 0, ran.stderr
        (line,) = (line for line in ran.stdout.splitlines() if line.startswith('{"nodes"'))  # Ray says more
        found: dict[str, Any] = json.loads(line)
        return found

    def worker(self) -> dict[str, str]:
        """Return what a worker that runs the farm says."""
        return {"vllm": f"{self.farm}/vllm/__init__.py", "asked": self.digest, "proof": self.digest, "uv": ""}

    def stock(self, asked: str = "") -> dict[str, str]:
        origin = f"{self.machine.root}/vllm/__init__.py"
        return {**self.worker(), "vllm": origin, "asked": asked, "proof": MISSING.format("receipt")}


def under_vpatch(machine: Installed, *options: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", "vpatch", "run", "-q", "--cache", machine.cache, *options, "--"]


@pytest.fixture(scope="module")
def short() -> Iterator[Path]:
    """A folder with a short name: Ray's sockets are below it."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def made(slim: Trees, short: Path) -> Installed:
    return machine(short / "m", slim("0.20.2"))


@contextmanager
def cluster(made: Installed, short: Path, before: Sequence[str | Path]) -> Iterator[Cluster]:
    """Run a cluster of two nodes, "one" and "two", each started by `ray start` with some words in front."""
    code = "import os, pathlib, vllm; print(pathlib.Path(vllm.__file__).parents[1], os.environ['VPATCH_RUN'])"
    shown = [*map(str, under_vpatch(made)), str(made.python), "-c", code]
    ran = subprocess.run(shown, env=environ(), cwd="/", capture_output=True, text=True, check=True)
    farm, digest = ran.stdout.split()
    words = [*before, made.python.with_name("ray")]
    with tempfile.TemporaryDirectory(dir=short) as name:
        folder = Path(name)
        (folder / "d").mkdir()
        with (
            node(words, start_words(folder / "1", "one"), environ()) as head,
            node(words, start_words(folder / "2", "two", head.address), environ()),
        ):
            yield Cluster(head.address, made, folder / "d", Path(farm), digest)


@pytest.fixture(scope="module")
def stock(made: Installed, short: Path) -> Iterator[Cluster]:
    with cluster(made, short, ()) as running:
        yield running


def test_ray_started_by_vpatch_on_each_node(made: Installed, short: Path, slim: Trees) -> None:
    """A driver without vpatch gets workers with the farm. A node whose vLLM has drifted does not join."""
    drifted = machine(short / "drifted", slim("0.20.2"))
    rewrite(drifted.root / FILE, (drifted.root / FILE).read_bytes().replace(*DRIFT))
    with cluster(made, short, under_vpatch(made)) as running:
        words = [*under_vpatch(drifted), drifted.python.with_name("ray")]
        words += start_words(short / "3", "three", running.address)
        refused = subprocess.run([*map(str, words)], env=environ(), capture_output=True, text=True, check=False)

        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"drifted: {FILE} (EngineArgs.create_engine_config)" in refused.stderr
        told = running.run("one", "two")
    assert told == {"nodes": 2, "one": running.worker(), "two": running.worker()}


def test_a_driver_without_vpatch_gets_the_installed_vllm(stock: Cluster) -> None:
    """Which the proof finds, also if vLLM copies the driver's variables to its workers."""
    exported = {"PYTHONPATH": str(stock.farm), "VPATCH_RUN": stock.digest}

    assert stock.run("one") == {"nodes": 2, "one": stock.stock()}
    assert stock.run("two", env=exported) == {"nodes": 2, "two": stock.stock(stock.digest)}


def test_a_driver_under_vpatch_takes_the_farm_along(stock: Cluster) -> None:
    told = stock.run("one", "two", before=under_vpatch(stock.machine))

    assert told == {"nodes": 2, "one": stock.worker(), "two": stock.worker()}


def test_a_driver_under_vpatch_and_uv(stock: Cluster) -> None:
    """Ray calls uv's hook there and no other, unless told otherwise: its workers ran the installed vLLM."""
    uv = Path(sys.executable).with_name("uv")
    options = ("--python", stock.machine.python)
    words = (uv, "run", "--no-project", "--python", stock.machine.python)
    told = stock.run("one", "two", before=under_vpatch(stock.machine, *options), python=words)
    worker = {**stock.worker(), "uv": str(uv)}

    assert told == {"nodes": 2, "one": worker, "two": worker}


@root_only
def test_a_node_without_the_farm(stock: Cluster, short: Path) -> None:
    """Its workers end before they run anything. With a setup function of the job instead, the proof finds it."""
    before = under_vpatch(stock.machine)
    with node([*without(stock), ray_of(stock)], start_words(short / "4", "bare", stock.address), environ()):
        told = stock.run("bare", "one", before=before)
        own = stock.run("bare", before=before, job={"worker_process_setup_hook": "gc.collect"})

    assert (told["nodes"], told["one"]) == (3, stock.worker())
    assert "Failed to execute the setup hook method, vpatch_ray.check" in told["bare"]
    assert MISSING.format("ray") in told["bare"]
    assert own["bare"] == stock.stock(stock.digest)


@root_only
@pytest.mark.parametrize("options", [(), ("--overlay", "turboquant-hybrid")])
def test_a_node_with_a_farm_of_its_own(options: tuple[str, ...], stock: Cluster, short: Path) -> None:
    """At another path: with the same overlays it serves as well, with others its workers end."""
    own = replace(stock.machine, cache=short / "own")
    words = [*without(stock), *under_vpatch(own, *options), ray_of(stock)]
    with node(words, start_words(short / "5", "own", stock.address), environ()):
        told = stock.run("own", before=under_vpatch(stock.machine))

    if options:
        assert f"this worker was started for {stock.digest[:12]}, and finds " in told["own"]
    else:
        (farm,) = own.cache.glob("*/vllm/__init__.py")
        assert told["own"] == {**stock.worker(), "vllm": str(farm)}


def without(stock: Cluster) -> list[str | Path]:
    """Return words that run a command where the cluster's farm is missing."""
    need("unshare")
    return ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none {stock.machine.cache} && exec "$@"', "sh"]


def ray_of(stock: Cluster) -> Path:
    return stock.machine.python.with_name("ray")
