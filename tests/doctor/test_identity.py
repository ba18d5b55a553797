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

VERSION = ".".join(map(str, sys.version_info[:3]))


def brief(diagnose: Diagnose, *arguments: str | Path) -> list[tuple[str, str, str]]:
    names = {"vllm", "python", "imported", "other-vllm"}
    return [(one["name"], one["level"], one["what"]) for one in diagnose(*arguments) if one["name"] in names]


@pytest.mark.parametrize("tree", ["bin/python", "site-packages", ""])
def test_each_way_to_name_it_finds_the_interpreter(diagnose: Diagnose, healthy: Path, tree: str) -> None:
    named = packages(healthy) if tree == "site-packages" else healthy / tree
    vllm, python = (one for one in diagnose(named) if one["name"] in {"vllm", "python", "imported"})

    assert (vllm["level"], vllm["what"], vllm["where"]) == ("ok", "vLLM 0.20.2", str(packages(healthy)))
    assert (python["level"], python["what"]) == ("ok", f"Python {VERSION}")
    assert Path(python["where"]).parent == healthy / "bin"


def test_what_is_known_without_an_interpreter(diagnose: Diagnose, healthy: Path, pristine: Trees) -> None:
    site = packages(healthy)
    for python in (healthy / "bin").glob("python*"):
        python.unlink()
    assert [one["level"] for one in diagnose(site, name="python")] == ["note"]
    put(healthy / "bin/python", "#!/bin/sh\necho no such library >&2\nexit 127\n").chmod(0o755)
    assert [one["level"] for one in diagnose(site, name="python")] == ["ok"], "it is not run"
    (named,) = diagnose(site, "--python", healthy / "bin/python", name="python")
    assert (named["level"], named["where"]) == ("problem", str(healthy / "bin/python"))
    assert named["what"] == "the interpreter does not answer: no such library"
    (none,) = diagnose(pristine("0.20.2"), name="python")
    assert (none["level"], none["do"]) == ("note", "name the interpreter that runs this vLLM with --python")


def test_an_interpreter_of_another_environment(diagnose: Diagnose, healthy: Path, stock: Path, tmp_path: Path) -> None:
    """The user patched one environment, and the server runs in another one."""
    (imported,) = diagnose(healthy, "--python", stock / "bin/python", name="imported")
    assert imported["level"] == "problem"
    assert imported["what"] == f"Python imports the vLLM in {packages(stock)}, not this one"
    assert f"`vpatch doctor --python {stock}/bin/python`" in imported["do"]
    environment(tmp_path / "bare")
    (none,) = diagnose(healthy, "--python", tmp_path / "bare/bin/python", name="imported")
    assert (none["level"], none["what"]) == ("problem", "Python finds no vLLM")


@pytest.mark.parametrize(("required", "level"), [(">=3.10,<3.15", "ok"), ("<3.11", "problem"), ("rubbish", "ok")])
def test_a_python_that_this_vllm_does_not_support(diagnose: Diagnose, healthy: Path, required: str, level: str) -> None:
    metadata = packages(healthy) / INFO / "METADATA"
    put(metadata, metadata.read_text().replace("Requires-Python: <3.15,>=3.10", f"Requires-Python: {required}"))
    put(packages(healthy) / INFO / "direct_url.json", '{"url": "file:///src", "dir_info": {"editable": true}}')
    what = f"Python {VERSION}" + (", and this vLLM requires <3.11" if level == "problem" else "")

    assert brief(diagnose, healthy) == [("vllm", "ok", "vLLM 0.20.2, an editable install"), ("python", level, what)]


def test_other_environments(diagnose: Diagnose, healthy: Path, stock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(healthy))
    monkeypatch.setattr(sys, "executable", str(healthy / "bin/python"))
    found = [
        ("vllm", "ok", "vLLM 0.20.2, found by the interpreter that runs vpatch"),
        ("python", "ok", f"Python {VERSION}"),
    ]
    assert brief(diagnose) == found
    monkeypatch.setenv("VIRTUAL_ENV", str(stock))
    (other,) = diagnose(name="other-vllm")
    assert (other["level"], other["what"]) == ("note", "VIRTUAL_ENV has another vLLM")
    assert other["where"] == str(stock)
    assert f"`vpatch doctor --python {stock}/bin/python`" in other["do"]


def test_a_checkout_of_an_environment(diagnose: Diagnose, slim: Trees, tmp_path: Path) -> None:
    checkout = shutil.copytree(slim("0.20.2"), tmp_path / "checkout", ignore=shutil.ignore_patterns("*.dist-info"))
    (environment(tmp_path / "venv") / "__editable__.vllm-0.20.2.pth").write_text(f"{checkout}\n")
    assert diagnose(tmp_path / "venv", name="vllm")[0]["level"] == "warning", "neither metadata nor git"
    subprocess.run(["/usr/bin/env", "git", "init", "-q", checkout], check=True, env={})

    assert brief(diagnose, tmp_path / "venv") == [
        ("vllm", "ok", "a source checkout of vLLM: git keeps the originals"),
        ("python", "ok", f"Python {VERSION}"),
    ]
    assert diagnose(tmp_path / "venv", name="edit") == [], "there is no RECORD to compare with"
