"""What docs/faq.md says and no other test shows."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Program, Trees
from tests.paths import link

OLD = "3.10"


@pytest.mark.deep
def test_a_vllm_on_python_3_10(vpatch: Program, slim: Trees, tmp_path: Path) -> None:
    """From another environment; what is changed and added compiles there."""
    folders = sorted(Path.home().glob(f".pyenv/versions/{OLD}.*/bin"))
    found = shutil.which(f"python{OLD}", path=os.pathsep.join(map(str, [*folders, os.environ["PATH"]])))
    if not found or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"needs Python {OLD}")
    subprocess.run([found, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    packages, python = tmp_path / f"venv/lib/python{OLD}/site-packages", tmp_path / "venv/bin/python"
    shutil.copytree(slim("0.20.2"), packages, copy_function=link, dirs_exist_ok=True)

    ran = vpatch("apply", "--python", python, "--json")
    assert ran.code == 0, ran.err
    assert vpatch("verify", "--python", python).code == 0

    changed = [packages / name for name in ran.json["changed"] if name.endswith(".py")]
    assert len(changed) > 10
    subprocess.run([python, "-m", "py_compile", *changed], check=True)
