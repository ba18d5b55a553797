"""A source checkout that refuses a removal, or that git cannot read."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from vpatch.installation import how_to_add

from tests.conftest import Process, Program, Ran
from tests.hybrid import CHANGED, INTERFACE, ONLY
from tests.needs import root_only
from tests.tree.conftest import clean, flagged, git

CACHE = "vllm/platforms/__pycache__"


@root_only
@pytest.mark.parametrize(
    ("path", "says"),
    [
        (f"{CACHE}/interface.cpython-311.pyc", f"cannot remove bytecode of: {INTERFACE}: operation not permitted"),
        (CACHE, f"cannot remove bytecode of: {INTERFACE}: operation not permitted"),
        ("vllm", "cannot remove: vllm/_vpatch: its folder is immutable (chattr +i)"),
    ],
)
def test_a_removal_that_is_refused(vpatch: Program, clone: Path, path: str, says: str) -> None:
    assert vpatch("apply", "-q", clone, *ONLY).code == 0
    (clone / CACHE).mkdir()
    (clone / CACHE / "interface.cpython-311.pyc").touch()
    before = {file: (clone / file).read_bytes() for file in CHANGED}

    with flagged(clone / path, "i"):
        ran = vpatch("revert", "-q", clone)
        assert (ran.code, says in ran.err) == (1, True), ran.err
        assert {file: (clone / file).read_bytes() for file in CHANGED} == before

    assert vpatch("revert", "-q", clone).code == 0
    assert clean(clone)


def test_without_gitpython(vpatch: Program, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "git", None)

    cause = f"a source checkout needs git and gitpython: {how_to_add('git')}"
    for command in ("apply", "revert"):
        assert vpatch(command, "-q", clone) == Ran(1, "", f"cannot read the checkout: {clone}: {cause}\n")
    assert vpatch("status", "-q", clone, *ONLY).code == 0


def test_without_git(process: Process, clone: Path, tmp_path: Path) -> None:
    ran = process("apply", "-q", clone, *ONLY, env={"PATH": str(tmp_path)})

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"cannot read the checkout: {clone}: ")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("init", [True, False])
def test_no_repository(vpatch: Program, clone: Path, *, init: bool) -> None:
    shutil.rmtree(clone / ".git")
    if init:
        git(clone, "init", "-q")  # and no commit yet
    else:
        (clone / ".git").mkdir()

    ran = vpatch("apply", "-q", clone, *ONLY)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"git fails: {clone}: {'' if init else 'there is a .git, and yet no repository'}")
    assert ran.err.count("\n") == 1
