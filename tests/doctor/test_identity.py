"""Which vLLM and which Python are examined, and what is wrong with them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Trees, environment
from tests.doctor.conftest import Diagnose, packages, put
from tests.hybrid import INFO


def levels(found: list[dict[str, str]]) -> list[str]:
    return [one["level"] for one in found]


def test_a_healthy_one(diagnose: Diagnose, healthy: Path) -> None:
    (vllm,), (python,) = diagnose(healthy, name="vllm"), diagnose(healthy, name="python")

    assert (vllm["level"], vllm["what"], vllm["where"]) == ("ok", "vLLM 0.20.2", str(packages(healthy)))
    version = ".".join(map(str, sys.version_info[:3]))
    assert (python["level"], python["what"]) == ("ok", f"Python {version}")
    assert python["where"] == str(healthy / "bin/python")


@pytest.mark.parametrize("tree", ["bin/python", "site-packages", ""])
def test_each_way_to_name_it_finds_the_interpreter(diagnose: Diagnose, healthy: Path, tree: str) -> None:
    named = packages(healthy) if tree == "site-packages" else healthy / tree

    (python,) = diagnose(named, name="python")

    assert (python["level"], Path(python["where"]).parent) == ("ok", healthy / "bin")
    assert diagnose(named, name="imported") == []


@pytest.mark.parametrize("program", ["", "#!/bin/sh\nexit 1\n"])
def test_a_folder_whose_interpreter_is_gone(diagnose: Diagnose, healthy: Path, program: str) -> None:
    for python in (healthy / "bin").glob("python*"):
        python.unlink()
    if program:  # it is not run
        put(healthy / "bin/python", program).chmod(0o755)

    assert levels(diagnose(packages(healthy), name="python")) == ["ok" if program else "note"]


def test_a_folder_without_an_interpreter(diagnose: Diagnose, pristine: Trees) -> None:
    (python,) = diagnose(pristine("0.20.2"), name="python")

    assert (python["level"], python["do"]) == ("note", f"`vpatch doctor --python PY {pristine('0.20.2')}`")


def test_an_interpreter_that_imports_another_one(diagnose: Diagnose, healthy: Path, stock: Path) -> None:
    """The user patched one environment, and the server runs in another one."""
    (imported,) = diagnose(healthy, "--python", stock / "bin/python", name="imported")

    assert imported["level"] == "problem"
    assert imported["what"] == f"Python imports the vLLM in {packages(stock)}, not this one"
    assert f"`vpatch doctor --python {stock}/bin/python`" in imported["do"]


def test_an_interpreter_that_imports_none(diagnose: Diagnose, healthy: Path, tmp_path: Path) -> None:
    environment(tmp_path / "bare")

    (imported,) = diagnose(healthy, "--python", tmp_path / "bare/bin/python", name="imported")

    assert (imported["level"], imported["what"]) == ("problem", "Python finds no vLLM")


def test_an_interpreter_that_does_not_answer(diagnose: Diagnose, healthy: Path) -> None:
    put(healthy / "bin/python", "#!/bin/sh\necho no such library >&2\nexit 127\n").chmod(0o755)

    (python,) = diagnose(packages(healthy), "--python", healthy / "bin/python", name="python")

    assert (python["level"], python["where"]) == ("problem", str(healthy / "bin/python"))
    assert python["what"] == "the interpreter does not answer: no such library"


@pytest.mark.parametrize(("required", "level"), [(">=3.10,<3.15", "ok"), ("<3.11", "problem"), ("rubbish", "ok")])
def test_a_python_that_this_vllm_does_not_support(diagnose: Diagnose, healthy: Path, required: str, level: str) -> None:
    metadata = packages(healthy) / INFO / "METADATA"
    put(metadata, metadata.read_text().replace("Requires-Python: <3.15,>=3.10", f"Requires-Python: {required}"))

    (python,) = diagnose(healthy, name="python")

    assert python["level"] == level
    assert ("requires <3.11" in python["what"]) == (level == "problem")


def test_other_environments(diagnose: Diagnose, healthy: Path, stock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(healthy))
    monkeypatch.setattr(sys, "executable", str(healthy / "bin/python"))
    assert diagnose(name="other-vllm") == []
    monkeypatch.setenv("VIRTUAL_ENV", str(stock))

    (vllm,), (other,) = diagnose(name="vllm"), diagnose(name="other-vllm")

    assert vllm["what"] == "vLLM 0.20.2, found by the interpreter that runs vpatch"
    assert (other["level"], other["what"], other["where"]) == ("note", "VIRTUAL_ENV has another vLLM", str(stock))
    assert f"`vpatch doctor --python {stock}/bin/python`" in other["do"]


def test_an_editable_install(diagnose: Diagnose, healthy: Path) -> None:
    put(packages(healthy) / INFO / "direct_url.json", '{"url": "file:///src", "dir_info": {"editable": true}}')

    assert diagnose(healthy, name="vllm")[0]["what"] == "vLLM 0.20.2, an editable install"


def test_a_checkout_of_an_environment(diagnose: Diagnose, slim: Trees, tmp_path: Path) -> None:
    checkout = shutil.copytree(slim("0.20.2"), tmp_path / "checkout", ignore=shutil.ignore_patterns("*.dist-info"))
    (environment(tmp_path / "venv") / "__editable__.vllm-0.20.2.pth").write_text(f"{checkout}\n")
    assert diagnose(tmp_path / "venv", name="vllm")[0]["level"] == "warning", "neither metadata nor git"
    subprocess.run(["/usr/bin/env", "git", "init", "-q", checkout], check=True, env={})

    (vllm,) = diagnose(tmp_path / "venv", name="vllm")

    assert (vllm["level"], vllm["where"]) == ("ok", str(checkout))
    assert vllm["what"] == "a source checkout of vLLM: git keeps the originals"
    assert levels(diagnose(tmp_path / "venv", name="python")) == ["ok"]
    assert diagnose(tmp_path / "venv", name="edit") == [], "there is no RECORD to compare with"
