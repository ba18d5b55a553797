"""`python -m vpatch.calls` answers what it cannot do in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from vpatch.calls.__main__ import main

from tests.releases import tree_of

CASES = {
    "no such overlay": (["nope"], "Error: no such overlay: nope: "),
    "no version": (["receipt", "-r", "abc"], "Error: not a version: abc: a release reads like 0.20.2\n"),
    "no vLLM there": (["receipt", "-r", "/nowhere/"], "Error: no vllm: /nowhere: no such folder\n"),
    "not pending": (
        ["hybrid-mtp-prefix", "-r", "RELEASE"],
        "hybrid-mtp-prefix: not pending on any of these releases\n",
    ),
}


@pytest.mark.parametrize(("arguments", "says"), CASES.values(), ids=CASES)
def test_what_it_cannot_do(arguments: list[str], says: str) -> None:
    ran = CliRunner().invoke(main, [str(tree_of("0.33.0")) if one == "RELEASE" else one for one in arguments])

    assert says in ran.output
    assert ran.exit_code == (1 if "Error" in says else 0)


def test_without_jedi(tmp_path: Path) -> None:
    (tmp_path / "jedi.py").write_text("raise ImportError('no jedi')\n")

    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import vpatch.calls.record"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran.returncode == 1
    assert ran.stderr.startswith("recording needs jedi: ")
    assert "[calls]" in ran.stderr
    assert ran.stderr.count("\n") == 1
