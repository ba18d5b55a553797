"""Code that runs before vLLM, and folders with another vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.conftest import Diagnose, Found, packages, put

PATCHES = "import sys\nif 'vllm' in sys.modules:\n    pass\n"


def one(found: list[Found]) -> Found:
    (only,) = found
    return only


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder with another vLLM."""
    put(tmp_path / "other/vllm/__init__.py", "")
    put(tmp_path / "other/vllm/engine/__init__.py", "")
    return tmp_path / "other"


def test_none(diagnose: Diagnose, healthy: Path) -> None:
    root = packages(healthy)
    put(root / "coverage.pth", "import sys; sys.path\n")
    put(root / "plain.pth", f"{root.parent}\n# import vllm\n")
    put(root / "__editable__.vllm-0.20.2.pth", "import sys; 'vllm'\n")
    put(root / "vllm_plugin.pth", "import vllm_plugin_finder\n")

    found = one(diagnose(healthy, name="startup"))

    assert found["level"] == "ok"
    assert diagnose(healthy, name="search-path") == []


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
def test_customize(
    diagnose: Diagnose, healthy: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found where Python found it; Debian has a `sitecustomize` of its own, so this one comes first by PYTHONPATH."""
    config = healthy / "pyvenv.cfg"  # Python runs `usercustomize` only where it reads the user's site-packages
    put(config, config.read_text().replace("packages = false", "packages = true"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "first"))
    file = put(tmp_path / f"first/{name}.py", PATCHES)

    found = one(diagnose(healthy, name="startup"))

    assert (found["level"], found["where"]) == ("warning", str(file))
    assert found["what"] == f"{name}.py runs when Python starts, and mentions vllm"
    put(file, "x = 1\n")
    assert one(diagnose(healthy, name="startup"))["level"] == "ok"


@pytest.mark.parametrize("line", ["import os; vllm = 'vllm'", "import booting"])
def test_a_pth_file(diagnose: Diagnose, healthy: Path, line: str) -> None:
    """Its own line mentions vLLM, or the module that it imports."""
    put(packages(healthy) / "booting.py", PATCHES)
    pth = put(packages(healthy) / "zz.pth", f"{line}\n")

    found = one(diagnose(healthy, name="startup"))

    assert (found["level"], found["where"]) == ("warning", str(pth))
    assert found["what"].startswith(f"`{line}`")


def test_pythonpath(diagnose: Diagnose, healthy: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{packages(healthy)}:{other.parent}")
    assert diagnose(healthy, name="search-path") == []
    monkeypatch.setenv("PYTHONPATH", f":{other}")

    found = one(diagnose(healthy, name="search-path"))

    assert (found["level"], found["where"]) == ("warning", str(other))
    assert "`env -u PYTHONPATH`" in found["do"]
    assert one(diagnose(healthy, name="imported"))["level"] == "problem"


def test_a_folder_that_a_pth_file_adds(diagnose: Diagnose, healthy: Path, other: Path) -> None:
    put(packages(healthy) / "zz.pth", f"{other}\n")

    found = one(diagnose(healthy, name="search-path"))

    assert (found["level"], found["where"]) == ("note", str(other))
    assert diagnose(healthy, name="imported") == [], "it comes after site-packages"


def test_the_current_folder(diagnose: Diagnose, healthy: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(packages(healthy))
    assert diagnose(healthy, name="search-path") == []
    monkeypatch.chdir(other)

    found = one(diagnose(healthy, name="search-path"))

    assert (found["level"], found["where"]) == ("warning", str(other))
