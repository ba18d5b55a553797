"""Mutants of a small project: which tests cover a line, what is drawn, and what is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.mutation.__main__ import Trial, draw, table
from tests.mutation.operators import mutants
from tests.mutation.record import Record, key, read
from tests.paths import ROOT

MODULE = "builder/vpatch/toy/sign.py"
PACKAGE = "builder/vpatch/__init__.py"
TESTS = "tests/toy/test_sign.py"
CODE = """def sign(x):
    if x > 0:
        return str(1)
    return str(0)
"""
# One test fails without a mutant, too: it kills nothing.
CHECKS = """from vpatch.toy.sign import sign
def test_broken(): assert sign(5) == "7"
def test_positive(): assert sign(2) == "1"
def test_negative(): assert sign(-1) == "0"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {MODULE: CODE, PACKAGE: "", TESTS: CHECKS, ".gitignore": ".venv/\n.cache\n"}.items():
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "project", check=True)
    return tmp_path / "project"


@pytest.fixture
def record(project: Path) -> Record:
    """What coverage and pytest write, for the project's tests."""
    data = CoverageData(str(project.parent / "data"))
    for context, lines in {
        "": [1],
        f"{TESTS}::test_broken|run": [2, 3],
        f"{TESTS}::test_positive|run": [2, 3],
        f"{TESTS}::test_negative|run": [2, 4],
    }.items():
        data.set_context(context)
        data.add_lines({f"/elsewhere/{MODULE}": lines, "/elsewhere/patches/other.py": lines})
    data.write()
    cases = "".join(
        f'<testcase classname="tests.toy.test_sign" name="test_{name}" time="{time}"/>'
        for name, time in {"broken": 0.1, "positive": 0.3, "negative": 0.2}.items()
    )
    (project.parent / "data.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return read(project.parent / "data", project.parent / "data.xml")


def test_the_tests_of_a_line(record: Record) -> None:
    assert set(record.lines) == {MODULE}
    assert record.tests(MODULE, (3, 3)) == [f"{TESTS}::test_broken", f"{TESTS}::test_positive"]
    assert record.tests(MODULE, (3, 4)) == [f"{TESTS}::test_{name}" for name in ("broken", "negative", "positive")]
    assert record.tests(MODULE, (3, 4), seconds=0.45) == [f"{TESTS}::test_{name}" for name in ("broken", "negative")]
    assert len(record.tests(MODULE, (1, 1))) == 3  # run by the import: the tests of the module
    assert record.ran(MODULE, (1, 1))
    assert not record.ran(MODULE, (5, 9))
    assert not record.ran("builder/vpatch/toy/other.py", (1, 1))


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("tests/a/test_b.py::test_c", ("tests.a.test_b", "test_c")),
        ("tests/a/test_b.py::TestC::test_d[e::f.py/g]", ("tests.a.test_b.TestC", "test_d[e::f.py/g]")),
    ],
)
def test_the_name_of_a_test_in_the_times(test: str, name: tuple[str, str]) -> None:
    assert key(test) == name


def test_what_is_drawn(project: Path, record: Record) -> None:
    drawn = draw(project, [record], 3, seed=1)

    assert len(drawn) == len({(one.start, one.end) for one in drawn}) == 3
    assert drawn == draw(project, [record], 3, seed=1)
    assert any(drawn != draw(project, [record], 3, seed=seed) for seed in range(2, 9))
    assert draw(project, [Record()], 3, seed=1) == []


@pytest.mark.deep
def test_killed_and_alive(project: Path, record: Record, tmp_path: Path) -> None:
    """The deep tier's record has one test that the first lacks."""
    first = Record(
        {MODULE: {line: tests - {f"{TESTS}::test_negative"} for line, tests in record.lines[MODULE].items()}}
    )
    trial = Trial(project, {"first": first, "deep": record}, tmp_path, jobs=1)
    wanted = {("swap comparison", 2), ("return None", 3), ("return None", 4)}
    chosen = {(one.operator, one.line): one for one in mutants(MODULE, CODE) if (one.operator, one.line) in wanted}

    results = [trial.result(one) for _, one in sorted(chosen.items())]

    assert [(one.mutant.operator, one.tier, one.test) for one in results] == [
        ("return None", "first", f"{TESTS}::test_positive"),
        ("return None", "deep", f"{TESTS}::test_negative"),
        ("swap comparison", "", ""),
    ]
    assert (project / MODULE).read_text() == CODE
    said = "\n".join(table(results))
    assert "3 mutants: the first tier killed 1, the deep tier 1 of the rest; 1 survived." in said
    assert "| vpatch/toy/sign.py:2 | swap comparison | `x > 0` | `(x >= 0)` | **none** | none of 3 |" in said


@pytest.mark.deep
def test_a_hang_is_a_kill(project: Path, record: Record, tmp_path: Path) -> None:
    trial = Trial(project, {"first": record}, tmp_path, jobs=1)
    copy = trial.copies.get()
    (copy.root / TESTS).write_text("def test_endless():\n    while True: ...\n")

    assert copy.run([f"{TESTS}::test_endless"], 5).hung


@pytest.mark.deep
def test_the_command_lists_what_it_would_run(project: Path, record: Record) -> None:
    options = ["--list", "--count", "2", "--first", str(project.parent / "data")]
    command = [sys.executable, "-m", "tests.mutation", *options]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert "0 mutants" in ran.stdout  # no line of this project ran


def test_without_a_record_nothing_is_counted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.mutation", "--list", "--first", str(tmp_path / "none")]

    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"no such record: {tmp_path}/none; ")
