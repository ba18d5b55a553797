"""A run of the whole suite fetches first: without a network, that is one line instead of hundreds of errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import CACHE, ROOT
from tests.releases import FIRST

CONFTEST = """
from pathlib import Path
from tests import releases
from tests.session import pytest_sessionstart, pytest_terminal_summary
releases.CACHE = Path({cache!r})
"""
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_one(n):
    pytest.skip("needs a unicorn" if n else "needs a dragon")
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = suite\naddopts = -m 'not deep'\nmarkers = deep\n")
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite/test_one.py").write_text(TESTS)
    return tmp_path


def run(suite: Path, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (suite / "suite/conftest.py").write_text(CONFTEST.format(cache=str(cache)))
    command = [sys.executable, "-m", "pytest", *arguments]
    # Nothing listens on the discard port.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    return subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, check=False)


def test_without_a_network_it_stops_with_one_line(suite: Path) -> None:
    ran = run(suite, suite / "no cache", "-n", "2")

    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    first, told = filter(None, (ran.stdout + ran.stderr).splitlines())
    assert first == f"fetching vLLM {', '.join(FIRST)}, once: later runs find it in .cache"
    assert told.startswith(f"ERROR: cannot run the tests: cannot fetch vLLM {FIRST[0]}: package index failed: ")


def test_without_a_network_it_runs_from_the_cache_and_says_what_did_not_run(suite: Path) -> None:
    ran = run(suite, CACHE)

    assert ran.returncode == 0
    assert "fetching" not in ran.stdout
    assert "3 tests did not run here: needs a unicorn (2), needs a dragon (1)" in ran.stdout.splitlines()


def test_a_part_of_the_suite_fetches_only_what_it_needs(suite: Path) -> None:
    assert run(suite, suite / "no cache", "suite").returncode == 0
