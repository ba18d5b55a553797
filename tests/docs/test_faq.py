"""What docs/faq.md says and no other test shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import vpatch

from tests.conftest import Program, Trees, contents_of
from tests.hybrid import ARG_UTILS
from tests.paths import ROOT, link

OLD = "3.10"


def old_python() -> str:
    """Return a Python 3.10, or skip the test."""
    folders = sorted(Path.home().glob(f".pyenv/versions/{OLD}.*/bin"))
    found = shutil.which(f"python{OLD}", path=os.pathsep.join(map(str, [*folders, os.environ["PATH"]])))
    if not found or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"needs Python {OLD}")
    return found


@pytest.mark.deep
def test_a_vllm_on_python_3_10(vpatch: Program, slim: Trees, tmp_path: Path) -> None:
    """From another environment; what is changed and added compiles there."""
    subprocess.run([old_python(), "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    packages, python = tmp_path / f"venv/lib/python{OLD}/site-packages", tmp_path / "venv/bin/python"
    shutil.copytree(slim("0.20.2"), packages, copy_function=link, dirs_exist_ok=True)

    ran = vpatch("apply", "--python", python, "--json")
    assert ran.code == 0, ran.err
    assert vpatch("verify", "--python", python).code == 0

    changed = [packages / name for name in ran.json["changed"] if name.endswith(".py")]
    assert len(changed) > 10
    subprocess.run([python, "-m", "py_compile", *changed], check=True)


def test_a_patched_vllm_needs_no_vpatch(patched: Trees) -> None:
    tree = patched("0.20.2")
    files = [tree / ARG_UTILS, *(tree / "vllm/_vpatch").glob("*.py")]

    assert len(files) > 5
    assert not [file for file in files if re.search(rb"^\s*(import|from) vpatch", file.read_bytes(), re.MULTILINE)]


def test_edits_of_the_user_stay(linked: Trees) -> None:
    """Edits beside those of the overlays; `revert` leaves them, too."""
    tree = linked("0.20.2")
    edited = b"# mine\n" + (tree / ARG_UTILS).read_bytes()
    (tree / ARG_UTILS).unlink()
    (tree / ARG_UTILS).write_bytes(edited)
    before = contents_of(tree)

    assert ARG_UTILS in vpatch.apply(tree, ["turboquant-skip-list"]).changed
    assert (tree / ARG_UTILS).read_bytes().startswith(b"# mine\n")
    vpatch.revert(tree)

    assert contents_of(tree) == before


def test_no_answer_is_long() -> None:
    """An answer has at most five lines, and a command."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / "docs/faq.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    answers = re.split(r"^##+ .*\n", text, flags=re.MULTILINE)

    assert len(answers) > 15
    assert [answer for answer in answers if len(answer.strip().splitlines()) > 5] == []
