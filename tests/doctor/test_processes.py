"""Running processes that use this vLLM; the tests start real ones."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from vpatch import api

from tests.cli.test_bad_system import humble
from tests.doctor.conftest import Diagnose, Found, packages, put
from tests.forks import output
from tests.needs import root_only
from tests.run.standin import ADDED, LOAD, farm_for, standing_in
from tests.tree.conftest import NOBODY

# linux/capability.h: SYS_PTRACE, SYS_ADMIN and PERFMON, by which root sees what other users' processes have mapped
WATCHING = 1 << 19 | 1 << 21 | 1 << 38

WAITS = "import sys\nprint('ready', flush=True)\nsys.stdin.read()\n"
MAPS = f"import mmap\nfile = open({{file!r}}, 'rb')\nmapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n{WAITS}"


@contextmanager
def running(
    *command: str | Path, executable: str | None = None, user: int | None = None, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a process that prints a line when it is ready, and ends with its input."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, executable=executable, stdin=pipe, stdout=pipe, text=True, user=user, env=env
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


def server(venv: Path) -> tuple[Path, Path, str]:
    """Return the command of a server: a script `vllm`, as an installer makes it, that imports a module of vLLM."""
    put(packages(venv) / "vllm_tiny.py", WAITS)
    return venv / "bin/python", put(venv / "bin/vllm", "import vllm_tiny\n"), "serve"


def of(process: subprocess.Popen[str], found: list[Found]) -> list[Found]:
    return [one for one in found if one["where"].startswith(f"process {process.pid}: ")]


def test_none(diagnose: Diagnose, healthy: Path) -> None:
    (found,) = diagnose(healthy, name="process")

    assert found["level"] == "ok"
    assert found["what"].startswith("no process runs this vLLM")


def test_a_server_from_before(diagnose: Diagnose, stock: Path) -> None:
    with running(*server(stock)) as old:
        assert diagnose(stock, name="process") == [], "nothing is applied yet"
        assert api.apply(stock).changed
        with running(*server(stock)) as new:
            (before,), (after,) = (of(one, diagnose(stock, name="process")) for one in (old, new))

    assert (before["level"], before["do"]) == ("problem", "restart it")
    assert before["what"] == "a process runs this vLLM since before the overlays were applied: it has the old code"
    assert before["where"] == f"process {old.pid}: python vllm serve"
    assert (after["level"], after["what"]) == ("ok", "a process runs this vLLM with the overlays")


def test_a_server_of_run_is_right_whenever_it_was_started(diagnose: Diagnose, stock: Path, tmp_path: Path) -> None:
    """It runs its farm, and compared it. `vpatch apply` beside it changes other files."""
    farm = farm_for(standing_in(packages(stock), "0.20.2"), tmp_path / "cache")
    command = (stock / "bin/python", put(stock / "bin/vllm", LOAD + WAITS), "serve")
    with running(*command, env=farm.environment()) as server:
        assert api.apply(stock).changed
        (right,) = of(server, diagnose(stock, name="process"))
        put(farm.path / ADDED, "own = 2\n")
        (changed,) = of(server, diagnose(stock, name="process"))

    assert (right["level"], right["do"]) == ("ok", "")
    assert right["what"] == "a process runs this vLLM with overlays by `vpatch run`, as its receipt claims"
    assert (changed["level"], changed["do"]) == ("problem", "restart it")
    start = f"a process runs other code than it claims: {farm.path}/{ADDED}: it has changed, and process "
    assert changed["what"].startswith(start)


def test_a_worker_shows_by_what_it_has_mapped(diagnose: Diagnose, healthy: Path, stock: Path, tmp_path: Path) -> None:
    """vLLM's workers change their command line; a program may import vLLM under any name."""
    extension = put(packages(healthy) / "vllm/_C.abi3.so", "compiled")
    script = put(tmp_path / "program.py", MAPS.format(file=str(extension)))
    with running(stock / "bin/python", script) as worker:
        found = diagnose(healthy, name="process")

        assert [one["level"] for one in of(worker, found)] == ["ok"]
        assert of(worker, diagnose(stock, name="process")) == []


def test_a_server_that_was_started_by_relative_paths(
    diagnose: Diagnose, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here by way of a link to the environment, too."""
    (healthy.parent / "link").symlink_to(healthy)
    monkeypatch.chdir(healthy.parent)
    server(healthy)
    with running("link/bin/python", "link/bin/vllm", "serve") as process:
        assert of(process, diagnose(healthy, name="process"))
        assert of(process, diagnose("link", name="process"))


def test_another_environments_server(diagnose: Diagnose, healthy: Path, stock: Path) -> None:
    with running(*server(stock)) as process:
        assert of(process, diagnose(healthy, name="process")) == []


def test_a_program_that_is_no_vllm(diagnose: Diagnose, healthy: Path, tmp_path: Path) -> None:
    with running(healthy / "bin/python", put(tmp_path / "program.py", WAITS), "vllm") as process:
        assert of(process, diagnose(healthy, name="process")) == []


@pytest.mark.parametrize("arguments", [("-m", "vllm.tiny"), ("-u", "-m", "vllm.tiny")])
def test_a_module_of_vllm(diagnose: Diagnose, healthy: Path, arguments: tuple[str, ...]) -> None:
    put(packages(healthy) / "vllm/__init__.py", "")
    put(packages(healthy) / "vllm/tiny.py", WAITS)
    with running(healthy / "bin/python", *arguments) as process:
        assert of(process, diagnose(healthy, name="process"))


@root_only
def test_a_process_of_another_user(stock: Path) -> None:
    """Its command line is visible, but not what it has mapped: vpatch cannot know whether it runs this vLLM."""
    command = ("vllm", "-c", "echo ready; read nothing")
    with running(*command, executable="/bin/sh", user=NOBODY) as old:
        api.apply(stock)
        with running(*command, executable="/bin/sh", user=NOBODY) as new:
            _code, out, _err = output("doctor", stock, "--json", first=lambda: humble(WATCHING))

    found = json.loads(out)["findings"]
    (before,), (after,) = of(old, found), of(new, found)
    assert (before["level"], before["do"]) == ("warning", "if it uses this vLLM, restart it")
    assert before["what"] == f"{after['what']}, since before the overlays were applied"
    assert (after["level"], after["what"]) == ("note", "a process of another user runs this vLLM or another one")
