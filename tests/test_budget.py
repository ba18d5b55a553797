"""The budget of the first tier: what it prints, and that a run in CI fails above it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.budget import LAST, Limits, summary
from tests.paths import ROOT
from tests.tiers import deep

CONFTEST = """
from tests import budget
from tests.budget import pytest_configure
budget.MODULES = "vllm/v1/core/sched/utils.py"
budget.LIMITS = budget.Limits(whole=1000, test=0.01)
"""
TESTS = """
import time

def test_one():
    begun = time.process_time()
    while time.process_time() - begun < 0.2:
        sum(range(10_000))

def test_last():
    assert True
"""


@pytest.mark.parametrize(
    ("tests", "whole", "above"),
    [
        ({"a.py::one": 9.0, "a.py::two": 9.0, LAST: 99.0}, 20.0, []),
        ({"a.py::one": 11.0, "a.py::two": 10.5}, 22.0, ["a.py::one costs 5.5", "a.py::two costs 5.2"]),
        ({"a.py::one": 0.1 + 30}, 35.0, ["a.py::one costs 15.1"]),
        ({"a.py::one": 9.0}, 42.0, ["the first tier costs 21"]),
    ],
)
def test_what_is_above_a_limit(tests: dict[str, float], whole: float, above: list[str]) -> None:
    lines, found = summary(tests, whole, 2.0, Limits(whole=20, test=5))

    assert [line.partition(" parses, above ")[0] for line in found] == above
    assert lines[0].startswith(f"budget: {whole / 2:.0f} of 20 parses, {whole:.0f} s of CPU at 2.00 s a parse; ")
    assert f"{sum(cost for test, cost in tests.items() if test != LAST):5.1f} s  a.py" in "".join(lines)


@pytest.mark.parametrize(("environment", "code"), [({"CI": "true"}, 1), deep({}, 0)])
def test_a_run_above_the_budget_fails_in_ci(environment: dict[str, str], code: int, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = suite\naddopts = -m 'not deep'\nmarkers = deep\n")
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite/conftest.py").write_text(CONFTEST)
    (tmp_path / "suite/test_one.py").write_text(TESTS)
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"],
        cwd=tmp_path,
        env=kept | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == code, ran.stdout + ran.stderr
    assert " s  suite/test_one.py\n" in ran.stdout
    assert "over budget: suite/test_one.py::test_one costs" in ran.stdout
