"""`vpatch doctor` for people: what it prints, its last line and exit code, and that it changes nothing.

What it finds is tested in `tests/doctor`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from vpatch import api

from tests.cli.test_terminal import ESCAPE
from tests.conftest import Process, Program, untouched
from tests.doctor.conftest import _compiled, _healthy, _stock, alone, healthy, packages, put, stock
from tests.hybrid import CONFIG, INFO
from tests.needs import root_only
from tests.terminals import written
from tests.tree.conftest import mounted

__all__ = ["_compiled", "_healthy", "_stock", "alone", "healthy", "stock"]

LEVELS = {"ok", "note", "warning", "problem"}


@pytest.fixture
def sick(healthy: Path, alone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with a finding of each level."""
    root = packages(healthy)
    put(root / CONFIG, (root / INFO / "vpatch/originals" / CONFIG).read_bytes())
    for number in range(5):
        put(root / f"vllm/_genesis/patch_{number}.py", "")
    put(root / "zz.pth", "import os; vllm = None\n")
    monkeypatch.setenv("PATH", f"{alone}:/usr/bin:/bin")
    return healthy


def test_lines_and_json(vpatch: Program, sick: Path) -> None:
    """Titles, a line a finding, and below it what to do; the last line counts the findings. JSON has every place."""
    ran, full = vpatch("doctor", sick), vpatch("doctor", sick, "--json").json

    assert ran.code == 1
    lines = ran.out.splitlines()
    titles = ["vLLM", "Overlays", "Files", "Other code that changes vLLM", "GPU", "Since the overlays were applied"]
    assert [line for line in lines if not line.startswith(" ")] == titles
    levels = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert set(levels) == LEVELS
    assert f"           → `vpatch apply {sick}`" in lines
    assert "vllm/_genesis/patch_2.py and 2 more)" in ran.out
    first, last = ran.err.splitlines()
    assert first.startswith("vLLM 0.20.2 in ")
    problems, warnings, notes = (
        f"{levels.count(level)} {level}{'s' * (levels.count(level) > 1)}" for level in ("problem", "warning", "note")
    )
    assert last == f"{problems}, {warnings} and {notes}. What to do is below each."

    (added,) = (one for one in full["findings"] if one["name"] == "unlisted-file")
    assert added["where"].endswith("vllm/_genesis/patch_4.py")
    found = [(one["name"], one["what"]) for one in full["findings"] if one["level"] == "problem"]
    assert [(one["what"], one["cause"]) for one in full["problems"]] == found
    assert [item["id"] for item in full["overlays"]] == [one.id for one in api.status(sick).overlays]


def test_no_problem(vpatch: Program, healthy: Path, alone: Path) -> None:
    (packages(healthy) / "torch").mkdir()
    ran = vpatch("doctor", healthy)

    assert (ran.code, ran.err.splitlines()[-1]) == (0, "No problem found: 1 note.")
    put(alone / "nvidia-smi", "#!/bin/sh\necho NVIDIA H100, 580.95.05, 81559 MiB, 9.0\n").chmod(0o755)

    assert vpatch("doctor", healthy).err.splitlines()[-1] == "No problem found."


@pytest.mark.deep
def test_80_columns(sick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are broken between words, and go on below their beginning; commands stay whole."""
    monkeypatch.chdir(sick.parent)

    seen = written("doctor", sick.name, env={"COLUMNS": "80"})

    assert f"  {ESCAPE}31mproblem{ESCAPE}0m  " in seen
    assert f"  {ESCAPE}32mok{ESCAPE}0m       vLLM 0.20.2" in seen
    assert f"{ESCAPE}31m" not in seen.splitlines()[0]
    for line in written("doctor", sick.name, env={"COLUMNS": "80", "NO_COLOR": "1"}).splitlines():
        assert len(line) <= 80 or "`" in line or "/" in line, line
        assert line[:1] != " " or line[:4].strip() == "" or line[11:12] != " "


def test_it_changes_nothing(child: Process, sick: Path, tmp_path: Path) -> None:
    """No bytecode and no cache entry either, also when Python would compile what starts with it."""
    put(packages(sick) / "zz.pth", "import starting\n")
    put(packages(sick) / "starting.py", "vllm = None\n")
    (tmp_path / "home").mkdir()
    with untouched(tmp_path):
        ran = child("doctor", sick, "--json")

    assert [one["what"] for one in ran.json["findings"] if one["name"] == "startup"], ran.err


@root_only
def test_a_read_only_tree(vpatch: Program, stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (tmp_path / "mounted").mkdir()
    with mounted("vpatch", tmp_path / "mounted", "-t", "tmpfs", "-o", "size=80m"):
        subprocess.run(["cp", "-a", stock, tmp_path / "mounted/venv"], check=True)
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "mounted"], check=True)
        ran = vpatch("doctor", tmp_path / "mounted/venv", "--json")

    (permission,) = (one for one in ran.json["findings"] if one["name"] == "permission")
    assert (ran.code, permission["level"]) == (0, "warning")
    assert permission["do"].startswith("run vLLM with the overlays without a write to its files: `vpatch run -- ")
