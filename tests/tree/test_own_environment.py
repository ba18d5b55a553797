"""Whose environment a `./.venv` is: only that of the user runs, and only for a command that has to import."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vpatch.tree import guard
from vpatch.tree.own_environment import why_foreign

from tests.conftest import Program
from tests.hybrid import ONLY
from tests.needs import root_only
from tests.tiers import deep
from tests.tree.conftest import NOBODY, PYTHON, git


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, venv_at: Callable[[Path], Path]) -> Path:
    """The current folder, with a `.venv` that was made there."""
    folder = tmp_path / "project"
    folder.mkdir(mode=0o755)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    venv_at(folder / ".venv")
    return folder


def why(project: Path) -> str:
    return why_foreign(Path(".venv"), project / ".venv/bin/python")


def moved(project: Path) -> None:
    """It was cloned, unpacked or copied: its owner is the user, and another place is written in it."""
    shutil.copytree(project / ".venv", project / "copy", symlinks=True)
    shutil.rmtree(project / ".venv")
    activate = project / "copy/bin/activate"
    activate.write_text(activate.read_text().replace(str(project), "/home/author/project"))
    (project / "copy").rename(project / ".venv")


def committed(project: Path, *options: str) -> None:
    """The author knew where it would be cloned, as it is the same on every machine of a CI."""
    git(project, "init", "-q")
    git(project, *options, "add", "-f", ".venv")
    git(project, "commit", "-q", "-m", "with .venv")


def of_a_worktree(project: Path) -> None:
    committed(project)
    (project / ".git").rename(project.parent / "elsewhere")
    (project / ".git").write_text("gitdir: ../elsewhere\n")


def mode(path: str, bits: int) -> Callable[[Path], None]:
    return lambda project: (project / path).chmod(bits)


FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "moved": (moved, "it was not made in "),
    "committed": (committed, "it may be part of the repository "),
    "committed, without whole names": (
        lambda project: committed(project, "-c", "index.version=4"),
        "it may be part of the repository ",
    ),
    "committed, and cloned as a worktree": (of_a_worktree, "it may be part of the repository "),
    "a repository": (lambda project: git(project / ".venv", "init", "-q"), "it is a repository itself"),
    "others may write": (mode(".venv", 0o757), "others may write to "),
    "others may write to bin": (mode(".venv/bin", 0o757), "others may write to "),
    "others may write packages": (mode(f".venv/lib/{PYTHON}/site-packages", 0o757), "others may write to "),
    "others may replace it": (mode(".", 0o757), "others may replace what is in "),
    "no activate": (lambda project: (project / ".venv/bin/activate").unlink(), "no such file or directory"),
    "no settings": (lambda project: (project / ".venv/pyvenv.cfg").unlink(), "no such file or directory"),
}


def test_that_of_the_user(project: Path) -> None:
    assert why(project) == ""
    git(project, "init", "-q")
    (project / ".gitignore").write_text(".venv/\n")
    git(project, "add", "-A")
    assert why(project) == ""


def test_how_programs_write_the_place(project: Path) -> None:
    for how in ('"{0}"', "'{0}'", "{0}"):
        line = f"VIRTUAL_ENV={how.format(project / '.venv')}"
        (project / ".venv/bin/activate").write_text(f"deactivate\n{line}\nexport x\n")

        assert why(project) == ""


@pytest.mark.parametrize("case", FOREIGN)
def test_that_of_others(project: Path, case: str) -> None:
    change, reason = FOREIGN[case]
    change(project)

    assert reason in why(project)


@root_only
def test_another_owner(project: Path) -> None:
    for path in (".venv", ".venv/bin", ".venv/bin/python", ".venv/bin/activate", ".venv/pyvenv.cfg"):
        os.chown(project / path, NOBODY, -1, follow_symlinks=False)
        assert why(project).endswith(f"{path.removeprefix('.venv')} belongs to another user")
        os.chown(project / path, 0, -1, follow_symlinks=False)


def test_a_share(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of its files is whoever mounted it."""
    monkeypatch.setattr(guard, "file_system", lambda _file: "cifs")

    assert why(project) == "it is not on a file system of this machine"


def traced(project: Path) -> Path:
    python, trace = project / ".venv/bin/python", project / "trace"
    (python.parent / "real").symlink_to(python.resolve())
    python.unlink()
    python.write_text(f'#!/bin/sh\necho ran >> {shlex.quote(str(trace))}\nexec "$(dirname "$0")/real" "$@"\n')
    python.chmod(0o755)
    return trace


FOUND = {
    "the project's": (("doctor", "--run", *ONLY), {}),
    "an active one": (("doctor", "--run", *ONLY), {"VIRTUAL_ENV": ".venv"}),
    "on PATH": (("doctor", "--run", "--python", "python", *ONLY), {"PATH": ".venv/bin"}),
    "named": (("doctor", "--run", "--python", ".venv/bin/python", *ONLY), {}),
    "as TREE": (("doctor", "--run", ".venv/bin/python", *ONLY), {}),
    "to export": (("run", "--export", "farm", *ONLY), {}),
    "to export, on PATH": (("run", "--export", "farm", "--python", "python", *ONLY), {"PATH": ".venv/bin"}),
}


@pytest.mark.parametrize(("command", "variables"), FOUND.values(), ids=FOUND)
def test_it_runs_by_its_absolute_path(
    vpatch: Program, project: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], variables: dict[str, str]
) -> None:
    """Probes have a folder of their own as the current one. A link is kept, or the environment is lost."""
    started = list[str]()
    popen = subprocess.Popen.__init__

    def note(self: subprocess.Popen[bytes], args: list[str], **rest: Any) -> None:
        started.append(args[0])
        popen(self, args, **rest)

    monkeypatch.setattr(subprocess.Popen, "__init__", note)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    vpatch(*command)

    assert {*started} - {sys.executable} == {str(project / ".venv/bin/python")}


RUN, EXPORT = ("doctor", "--run"), ("run", "--export", "farm")


@pytest.mark.parametrize(("command", "case"), [(RUN, ""), (EXPORT, "moved"), deep(RUN, "moved"), deep(EXPORT, "")])
def test_it_runs_only_for_a_command_that_has_to_import(
    vpatch: Program, project: Path, command: tuple[str, ...], case: str
) -> None:
    """The first line says so."""
    if case:
        FOREIGN[case][0](project)
    trace = traced(project)
    for reading in ("status", "verify", "doctor"):
        vpatch(reading, *ONLY)
    assert not trace.exists()

    ran = vpatch(*command, *ONLY)

    first = ran.err.splitlines()[0]
    assert (trace.exists(), "runs .venv/bin/python" in first) == (not case, not case), ran
    told = ran.out if command[0] == "doctor" else ran.err
    assert ("it was not made in" in " ".join(told.split())) == bool(case)
    assert ("--python .venv/bin/python" in " ".join(told.split())) == bool(case)
