"""What a run under coverage records about its tests: also what runs in processes that a test starts, and in set-ups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.mutation.record import Record, read
from tests.paths import ROOT

FORK = "tests/cli/test_diff.py::test_the_diff_is_what_apply_does[plain]"
PROCESS = "tests/cli/test_contract.py::test_version_and_module"
MODULE = "builder/vpatch/toy.py"


@pytest.fixture
def recorded(tmp_path: Path) -> Record:
    options = ["--cov", "--cov-context=test", "--cov-report=", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST"))}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, FORK, PROCESS],
        cwd=ROOT,
        env={**environment, "COVERAGE_FILE": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    return read(tmp_path / "data", None)


@pytest.mark.deep
def test_what_runs_in_other_processes_of_a_test(recorded: Record) -> None:
    """One test runs the program in a fork, and the other in a new interpreter, that only prints a version."""
    assert FORK in _all(recorded.lines["builder/vpatch/cli/tree.py"])
    assert PROCESS in _all(recorded.lines["builder/vpatch/__main__.py"])


def _all(lines: Mapping[int, frozenset[str]]) -> set[str]:
    return {test for tests in lines.values() for test in tests}


def test_a_set_up_is_shared_by_the_tests_of_its_file(tmp_path: Path) -> None:
    """What a fixture of the module or the session runs is recorded only for the first test that needs it."""
    data = CoverageData(str(tmp_path / "data"))
    for context, line in {
        "tests/a.py::first|setup": 1,
        "tests/a.py::first|run": 2,
        "tests/a.py::second[x::y]|run": 3,
        "tests/b.py::other|teardown": 4,
    }.items():
        data.set_context(context)
        data.add_lines({f"/elsewhere/{MODULE}": [line]})
    data.write()

    lines = read(tmp_path / "data", None).lines[MODULE]

    assert lines == {
        1: {"tests/a.py::first", "tests/a.py::second[x::y]"},
        2: {"tests/a.py::first"},
        3: {"tests/a.py::second[x::y]"},
        4: {"tests/b.py::other"},
    }
