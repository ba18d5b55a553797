"""`vpatch new` writes a project whose tests pass, and overwrites no file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Program, install_into
from tests.releases import tree_of

RELEASE = "0.20.2"


def files(project: Path, *arguments: str, program: Program) -> list[str]:
    """Run `vpatch new`; return the files that it wrote."""
    begun = program("new", *arguments, "--vllm", RELEASE, "--json")
    assert (begun.code, begun.err) == (0, "")
    return [str(Path(file).relative_to(project)) for file in begun.json["files"]]


@pytest.fixture
def project(vpatch: Program, tmp_path: Path) -> Path:
    """A project with two overlays."""
    project = tmp_path / "my-fix"
    assert files(project, "my-fix", str(tmp_path), program=vpatch) == [
        "pyproject.toml",
        "vpatch_my_fix/__init__.py",
        "vpatch_my_fix/my_fix.py",
        "vpatch_my_fix/companions/__init__.py",
        "vpatch_my_fix/companions/my_fix.py",
        "tests/test_my_fix.py",
    ]
    assert files(project, "other", str(project), program=vpatch) == [
        "vpatch_my_fix/other.py",
        "vpatch_my_fix/companions/other.py",
        "tests/test_other.py",
    ]
    return project


def test_what_it_writes_compiles(project: Path) -> None:
    for file in project.rglob("*.py"):
        compile(file.read_text(), file, "exec")


@pytest.mark.deep
def test_the_tests_pass(project: Path) -> None:
    """The project is installed where an environment that has vpatch finds it."""
    installed = project.parent / "installed"
    install_into(installed, project)
    release = project.parent / "caches/vpatch/releases" / RELEASE
    release.parent.mkdir(parents=True, exist_ok=True)
    release.symlink_to(tree_of(RELEASE))
    env = {**os.environ, "PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(project.parent / "caches")}
    record = [("vpatch.calls", name, "--release", RELEASE) for name in ("my-fix", "other")]
    for module, *arguments in (*record, ("pytest", "-q", "-p", "no:cacheprovider", "tests")):
        command = [sys.executable, "-m", module, *arguments]
        ran = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "10 passed" in ran.stdout


def test_no_file_is_overwritten(vpatch: Program, tmp_path: Path) -> None:
    assert vpatch("new", "my-fix", tmp_path).code == 0
    module = tmp_path / "my-fix/vpatch_my_fix/my_fix.py"
    module.write_text("# mine")

    ran = vpatch("new", "my-fix", tmp_path / "my-fix")

    assert ran.code == 1
    assert f"exists already: {module}: vpatch does not overwrite it; choose another NAME" in ran.err
    assert module.read_text() == "# mine"


@pytest.mark.parametrize(
    ("name", "project", "code", "says"),
    [
        *((name, "", 2, "joined by hyphens") for name in ("My-Fix", "my_fix", "-x", "a--b", "2b", "a/b", "")),
        ("class", "", 2, "is a keyword of Python"),
        ("turboquant-tiles", "", 2, "is the id of an installed overlay: choose another"),
        ("my-fix", "[project", 1, "cannot read: "),
        ("my-fix", '[project.entry-points."vpatch.overlays"]\nx = "gone"\n', 1, "vpatch.overlays names gone"),
    ],
)
def test_what_is_refused(vpatch: Program, tmp_path: Path, name: str, project: str, code: int, says: str) -> None:
    (tmp_path / "pyproject.toml").write_text(project)

    ran = vpatch("new", "--", name, tmp_path)

    assert (ran.code, says in ran.err) == (code, True), ran
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]


def test_a_project_without_overlays_is_left_alone(vpatch: Program, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')

    assert vpatch("new", "my-fix", tmp_path).code == 0
    assert (tmp_path / "my-fix/pyproject.toml").is_file()
