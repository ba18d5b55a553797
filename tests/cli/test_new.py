"""`vpatch new` writes a project whose tests pass, and overwrites no file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Program, install_into
from tests.loopback import IndexServer, index, settings
from tests.releases import tree_of

__all__ = ["index", "settings"]

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
    assert "12 passed" in ran.stdout


@pytest.mark.parametrize(
    ("vllm", "ends"), [(False, "3 skipped"), pytest.param(True, "3 passed", marks=pytest.mark.deep)]
)
def test_a_companion_that_imports_vllm(project: Path, *, vllm: bool, ends: str) -> None:
    """Its tests run where vLLM is, and elsewhere they say why they do not; those of the states run anywhere."""
    companion = project / "vpatch_my_fix/companions/my_fix.py"
    companion.write_text(companion.read_text().replace("\nOTHER", "\nfrom vllm.logger import init_logger\n\nOTHER"))
    if vllm:
        (logger := project / "vllm/logger.py").parent.mkdir()
        logger.write_text("def init_logger(name): ...\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "machine_name",
        "tests/test_my_fix.py",
    ]

    ran = subprocess.run(
        command,
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, f"{ends}, 3 deselected" in ran.stdout) == (0, True), ran.stdout
    assert ("No module named 'vllm'" in ran.stdout) is not vllm


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
        *((name, "", 2, "joined by hyphens; as in my-overlay") for name in ("2b", "", "...", "é")),
        *(
            (name, "", 2, f"joined by hyphens; did you mean `vpatch new -- {meant} ")
            for name, meant in (
                ("My-Fix", "my-fix"),
                ("MyFix", "my-fix"),
                ("my_fix", "my-fix"),
                ("my fix.py", "my-fix-py"),
                ("-x", "x"),
                ("a--b", "a-b"),
                ("a/b", "a-b"),
            )
        ),
        ("x" * 233, "", 2, "has 233 characters: a file can be named after 232 at most"),
        (
            "class",
            "",
            2,
            "'class' is a keyword of Python, which names no module of overlays; did you mean `vpatch new -- c",
        ),
        (
            "companions",
            "",
            2,
            "is the folder of companions, which names no module of overlays; did you mean `vpatch new",
        ),
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


def test_the_longest_name(vpatch: Program, tmp_path: Path) -> None:
    assert vpatch("new", "x" * 232, tmp_path).code == 0


@pytest.mark.parametrize(
    ("release", "code", "says"),
    [
        ("0.21", 0, 'Case("0.21.0"'),
        ("v0.24.0", 0, 'Case("0.24.0"'),
        ("1.0", 0, 'Case("1.0"'),
        ("0.20.9", 2, "no such release: vllm 0.20.9: the index has 1.0"),
        ("99", 2, "no such release: vllm 99: the index has 1.0"),
        ("latest", 2, "not a version: latest: a release reads like 0.20.2"),
        ("../x", 2, "not a version: ../x: a release reads like 0.20.2"),
    ],
)
def test_releases(vpatch: Program, index: IndexServer, tmp_path: Path, release: str, code: int, says: str) -> None:
    """A release that exists is spelled as the index spells it; of any other, nothing is written."""
    ran = vpatch("new", "my-fix", tmp_path / "at", "--vllm", release)
    tests = [file.read_text() for file in (tmp_path / "at").rglob("test_my_fix.py")]

    assert (ran.code, len(tests)) == (code, code == 0), ran
    assert says in (tests[0] if tests else ran.err)


def test_without_the_index(vpatch: Program, index: IndexServer, tmp_path: Path) -> None:
    """A release that vpatch knows needs no index; any other may exist, which a note says."""
    index.stop()

    known, unknown = (vpatch("new", name, tmp_path, "--vllm", v) for name, v in (("a", "0.24.0"), ("b", "0.99.0")))

    assert (known.code, "note: " in known.err) == (0, False)
    assert (unknown.code, "note: vpatch could not check that vLLM 0.99.0 exists: " in unknown.err) == (0, True)
