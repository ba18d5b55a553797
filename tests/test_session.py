"""A run of the whole suite fetches first: without a network, that is one line instead of hundreds of errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import CACHE, ROOT
from tests.releases import FIRST

pytestmark = pytest.mark.deep

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
FETCHING = f"fetching vLLM {', '.join(FIRST)}, once: later runs find it in .cache"
SKIPPED = "3 tests did not run here: needs a unicorn (2), needs a dragon (1)"


@pytest.mark.parametrize(
    ("arguments", "cached", "line"),
    [
        (("-n", "2"), False, "ERROR: cannot run the tests: cannot fetch vLLM 0."),
        ((), True, SKIPPED),
        (("suite",), False, SKIPPED),  # a part of the suite fetches only what it needs
    ],
)
def test_without_a_network(tmp_path: Path, arguments: tuple[str, ...], line: str, *, cached: bool) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = suite\naddopts = -m 'not deep'\nmarkers = deep\n")
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite/test_one.py").write_text(TESTS)
    (tmp_path / "suite/conftest.py").write_text(CONFTEST.format(cache=str(CACHE if cached else tmp_path / "no cache")))
    # Nothing listens on the discard port.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    command = [sys.executable, "-m", "pytest", *arguments]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    found = (ran.stdout + ran.stderr).splitlines()

    stops = line != SKIPPED
    assert ran.returncode == (pytest.ExitCode.USAGE_ERROR if stops else pytest.ExitCode.OK)
    assert any(one.startswith(line) for one in found)
    assert (FETCHING in found) is stops
    assert not stops or len([*filter(None, found)]) == 2
