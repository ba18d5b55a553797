"""What is older than the overlays: compiled code, and processes that use this vLLM; the tests start real ones."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from vpatch import api
from vpatch.doctor import stale
from vpatch.doctor.subject import Finding, Level

from tests.cli.test_bad_system import humble
from tests.doctor.conftest import Diagnose, Examine, Found, brief, packages, put
from tests.forks import output
from tests.needs import root_only
from tests.run.standin import ADDED, LOAD, MAPS, WAITS, WATCHING, farm_for, standing_in, started
from tests.tree.conftest import NOBODY

BEFORE, AFTER = 1_000_000_000, 4_000_000_000
JIT, AOT = "9e386186a3", "torch_aot_compile/61bda05feca29378"


def stamp(top: Path, when: int) -> None:
    for path in (top, *top.rglob("*")):
        os.utime(path, (when, when))


@contextmanager
def compiled(top: Path) -> Iterator[Path]:
    """Make a model compiled in each way, both from before the overlays; after the block, move the cache away."""
    put(top / JIT / "rank_0_0/backbone/vllm_compile_cache.py", "")
    put(top / AOT / "rank_0_0/model", "")
    put(top / AOT / "inductor_cache/24/code.py", "")
    stamp(top, BEFORE)
    yield top
    top.rename(top.with_name("moved"))


def test_compiled_models(
    examine: Examine, healthy: Path, stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(venv: Path = healthy) -> list[Finding]:
        return list(stale.caches(examine(venv)))

    default = tmp_path / "home/.cache/vllm/torch_compile_cache"
    assert brief(found()) == [("compile-cache", "ok", "no compiled model is older than the overlays")]
    with compiled(default):
        assert found(stock) == [], "nothing is applied"
        (old,) = found()
        assert (old.level, old.where) == (Level.NOTE, (str(default / AOT), str(default / JIT)))
        assert f"`rm -r {default}`" in old.do
        # vLLM writes a new model into the old folder, whose own time stays.
        for entry, file, other in ((JIT, "rank_0_0/backbone/vllm_compile_cache.py", AOT), (AOT, "rank_0_0/model", JIT)):
            os.utime(default / entry / file, (AFTER, AFTER))
            assert found()[0].where == (str(default / other),)
            stamp(default, BEFORE)
    for variable, folder in (("VLLM_CACHE_ROOT", "root"), ("XDG_CACHE_HOME", "xdg/vllm")):
        monkeypatch.setenv(variable, str(tmp_path / folder.removesuffix("/vllm")))
        with compiled(tmp_path / folder / "torch_compile_cache") as cache:
            assert f"`rm -r {cache}`" in found()[0].do
        monkeypatch.delenv(variable)


@pytest.mark.parametrize(
    ("name", "variable", "folder"),
    [
        ("Triton", "TRITON_CACHE_DIR", "kernels"),
        ("Triton", "", "home/.triton/cache"),
        ("Inductor", "TORCHINDUCTOR_CACHE_DIR", "kernels"),
        ("Inductor", "", "temporary/torchinductor_"),
    ],
)
def test_kernels_need_nothing(
    name: str, variable: str, folder: str, examine: Examine, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may run as a number that it has no name for."""
    nameless = KeyError("getpwuid(): uid not found: 1234")
    monkeypatch.setattr("getpass.getuser", Mock(side_effect=nameless))
    kernels = healthy.parent / folder
    if variable:
        monkeypatch.setenv(variable, str(kernels))
    put(kernels / "ABC/kernel.cubin", "")
    stamp(kernels, AFTER)
    assert [one.name for one in stale.caches(examine(healthy))] == ["compile-cache"]
    stamp(kernels, BEFORE)
    (found,) = (one for one in stale.caches(examine(healthy)) if one.name == "kernel-cache")

    assert (found.level, found.where, found.do) == (Level.OK, (str(kernels),), "")
    assert found.what.startswith(f"{name}'s kernels from before the overlays")


def server(venv: Path) -> tuple[Path, Path, str]:
    """Return the command of a server: a script `vllm`, as an installer makes it, that imports a module of vLLM."""
    put(packages(venv) / "vllm_tiny.py", WAITS)
    return venv / "bin/python", put(venv / "bin/vllm", "import vllm_tiny\n"), "serve"


def of(process: int, found: list[Found]) -> list[Found]:
    return [one for one in found if one["where"].startswith(f"process {process}: ")]


def test_servers_from_before_and_after(diagnose: Diagnose, stock: Path, tmp_path: Path) -> None:
    """Of `vpatch run`, too: it runs its farm, and compared it. `vpatch apply` beside it changes other files."""
    farm = farm_for(standing_in(packages(stock), "0.20.2"), tmp_path / "cache")
    run = (stock / "bin/python", put(stock / "bin/vllm_run", LOAD + WAITS), "vllm")
    with started(*server(stock)) as old, started(*run, env=farm.environment()) as farmed:
        assert diagnose(stock, name="process") == [], "nothing is applied yet"
        assert api.apply(stock).changed
        with started(*server(stock)) as new:
            found = diagnose(stock, name="process")
        put(farm.path / ADDED, "own = 2\n")
        (changed,) = of(farmed, diagnose(stock, name="process"))

    (before,), (after,), (right,) = (of(one, found) for one in (old, new, farmed))
    assert (before["level"], before["do"]) == ("problem", "restart it")
    assert before["what"] == "a process runs this vLLM since before the overlays were applied: it has the old code"
    assert before["where"] == f"process {old}: python vllm serve"
    assert (after["level"], after["what"]) == ("ok", "a process runs this vLLM with the overlays")
    assert (right["level"], right["do"]) == ("ok", "")
    assert right["what"] == "a process runs this vLLM with overlays by `vpatch run`, as its receipt claims"
    assert (changed["level"], changed["do"]) == ("problem", "restart it")
    start = f"a process runs other code than it claims: {farm.path}/{ADDED}: it has changed, and process "
    assert changed["what"].startswith(start)


def test_which_processes_run_this_vllm(
    examine: Examine, healthy: Path, stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's workers change their command line, and a program may import vLLM under any name: what is mapped counts."""
    (healthy.parent / "link").symlink_to(healthy)
    monkeypatch.chdir(healthy.parent)
    python, _, _ = server(healthy)
    extension = put(packages(healthy) / "vllm/_C.abi3.so", "compiled")
    program = put(tmp_path / "maps.py", MAPS.format(file=str(extension)))
    put(packages(healthy) / "vllm/__init__.py", "")
    put(packages(healthy) / "vllm/tiny.py", WAITS)
    commands: dict[str, tuple[tuple[str | Path, ...], bool]] = {
        "by relative paths, and a link": (("link/bin/python", "link/bin/vllm", "serve"), True),
        "what it has mapped": ((stock / "bin/python", program), True),
        "a module of vLLM": ((python, "-u", "-m", "vllm.tiny"), True),
        "another environment": (server(stock), False),
        "a program that is no vLLM": ((python, put(tmp_path / "waits.py", WAITS), "vllm"), False),
    }
    with ExitStack() as stack:
        running = {name: stack.enter_context(started(*command)) for name, (command, _) in commands.items()}
        for venv in (healthy, Path("link")):
            where = " ".join(place for one in stale.processes(examine(venv)) for place in one.where)
            assert {name for name, process in running.items() if f"process {process}: " in where} == {
                name for name, (_, shown) in commands.items() if shown
            }


@root_only
def test_a_process_of_another_user(stock: Path) -> None:
    """Its command line is visible, but not what it has mapped: vpatch cannot know whether it runs this vLLM."""
    command = ("vllm", "-c", "echo ready; read nothing")
    with started(*command, executable="/bin/sh", user=NOBODY) as old:
        api.apply(stock)
        with started(*command, executable="/bin/sh", user=NOBODY) as new:
            _code, out, _err = output("doctor", stock, "--json", first=lambda: humble(WATCHING))

    found = json.loads(out)["findings"]
    (before,), (after,) = of(old, found), of(new, found)
    assert (before["level"], before["do"]) == ("warning", "if it uses this vLLM, restart it")
    assert before["what"] == f"{after['what']}, since before the overlays were applied"
    assert (after["level"], after["what"]) == ("note", "a process of another user runs this vLLM or another one")
