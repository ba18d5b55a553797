"""A real vLLM server on the CPU, by `vpatch run` and after `vpatch apply`: its answers, and its processes' receipts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.needs import need
from tests.paths import link
from tests.run import odd_mlp
from tests.run.served import environ, serving
from tests.validation.cpu import environment

pytestmark = pytest.mark.deep

ID = "odd-mlp"
PROCESSES = ("API server", "EngineCore", "worker")


class Seen(NamedTuple):
    """What one server showed, `vpatch ps --json` said of its processes, and `vpatch verify --pid` returned for each."""

    tokens: list[int]
    log: str
    metrics: str
    processes: list[dict[str, Any]]
    proof: list[int]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """Servers one after another, with one home and so one compile cache: stock, farm, both again, and applied.

    The first two are started by vLLM's own program, the others by `python -m`.
    """
    need("g++")  # vLLM compiles the model
    top, python = tmp_path_factory.mktemp("served"), environment.serving()
    shutil.copy(odd_mlp.__file__, top)
    (top / "odd_mlp-1.dist-info").mkdir()
    (top / "odd_mlp-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: odd-mlp\nVersion: 1\n")
    (top / "odd_mlp-1.dist-info/entry_points.txt").write_text(f"[vpatch.overlays]\n{ID} = odd_mlp\n")
    (top / "home").mkdir()
    model, variables = top / "model", environ(top / "home")
    subprocess.run([python, Path(__file__).with_name("tiny_llama.py"), model], check=True, capture_output=True)
    farm = (sys.executable, "-m", "vpatch", "run", "--with", ID, "--cache", top / "cache", "--")
    script, module = (python.with_name("vllm"),), (python, "-m", "vllm.entrypoints.cli.main")

    def look(command: Sequence[str | Path], *first: Path) -> Seen:
        path = os.pathsep.join(map(str, (*first, top)))
        with serving(command, model, variables | {"PYTHONPATH": path}) as server:
            tokens, metrics = server.tokens(), server.metrics()
            found = json.loads(_vpatch("ps", "--json").stdout)["processes"]
            processes = [one for one in found if os.getsid(one["pid"]) == server.process]
            proof = [_vpatch("verify", "--pid", str(one["pid"])).returncode for one in processes]
        return Seen(tokens, "".join(server.log), metrics, processes, proof)

    ways = {"stock": script, "farm": (*farm, *script), "stock again": module, "farm again": (*farm, *module)}
    found = {name: look(command) for name, command in ways.items()}
    return found | {"applied": look(module, _applied(python, top))}


def _applied(python: Path, top: Path) -> Path:
    """Return a copy of the environment's vLLM, made of hard links, to which `vpatch apply --receipt` has written."""
    (site,) = python.parents[1].glob("lib/python3*/site-packages")
    for folder in (site / "vllm", *site.glob("vllm*.dist-info"), *site.glob("vllm*.libs")):
        shutil.copytree(folder, top / "applied" / folder.name, copy_function=link)
    ran = _vpatch("apply", "--with", ID, "--receipt", str(top / "applied"), PYTHONPATH=str(top))
    assert ran.returncode == 0, ran.stderr
    return top / "applied"


def _vpatch(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, "-m", "vpatch", *words], {**os.environ, **variables}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_the_overlay_changes_the_answer_and_no_compile_cache_keeps_it(seen: dict[str, Seen]) -> None:
    """vLLM keeps one compiled model for the stock code and the farm's; it compiles anew when they take turns."""
    tokens = {name: one.tokens for name, one in seen.items()}

    assert tokens["stock"] != tokens["farm"]
    assert tokens["stock again"] == tokens["stock"]
    assert tokens["farm again"] == tokens["farm"] == tokens["applied"]
    assert "saved AOT compiled function" in seen["farm"].log


@pytest.mark.parametrize("way", ["farm", "farm again", "applied"])
def test_each_process_of_the_server_has_a_receipt(way: str, seen: dict[str, Seen]) -> None:
    ran = seen[way]
    (digest,) = {one["digest"] for one in ran.processes}

    assert (len(ran.processes), ran.proof) == (len(PROCESSES), [0] * len(PROCESSES))
    lines = re.findall(rf"vpatch: process (\d+) runs .*\b{ID}\b.* \(digest {digest[:12]}\)", ran.log)
    assert {int(line) for line in lines} == {one["pid"] for one in ran.processes}
    (gauge,) = re.findall(r"^vpatch_info{.*", ran.metrics, re.MULTILINE)
    assert re.fullmatch(rf'vpatch_info{{digest="{digest}",overlays="[^"]*\b{ID}\b[^"]*"}} 1\.0', gauge)


def test_both_programs_run_the_same_farm(seen: dict[str, Seen]) -> None:
    assert seen["farm"].processes[0]["digest"] == seen["farm again"].processes[0]["digest"]


@pytest.mark.parametrize("way", ["stock", "stock again"])
def test_a_stock_server_proves_nothing(way: str, seen: dict[str, Seen]) -> None:
    ran = seen[way]

    assert [one["digest"] for one in ran.processes] == [None] * len(PROCESSES)
    assert ran.proof == [1] * len(PROCESSES)
    assert "vpatch" not in ran.metrics
