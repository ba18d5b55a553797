"""Probes as scripts: one text that needs nothing else, and is what the modules are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch import Probe, probe

MODULES = {
    "__init__": "",
    "common": """
from __future__ import annotations
from some_probes.deeper import VALUE

QUOTED = 'it\\'s "{VALUE}"\\n'
""",
    "deeper": "VALUE = 3\n",
    "alone": """
if __name__ == "__main__":
    print("alone")
""",
    "both": """
from __future__ import annotations
from some_probes.common import QUOTED
from some_probes.deeper import VALUE

if __name__ == "__main__":
    print(repr(QUOTED), VALUE)
""",
    "wrong": """
from some_probes.common import VALUE

def main():
    assert VALUE == 4, "not 4"

main()
""",
}

Made = Callable[[str], Probe]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """`made("alone")`: the probe of a module of a package that is only here."""
    package = "some_probes"
    (tmp_path / package).mkdir()
    for name, text in MODULES.items():
        (tmp_path / package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package, raising=False)
    return lambda name: probe(package, name, gpu=name == "alone")


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", script]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_probe_runs_as_main(made: Made, tmp_path: Path) -> None:
    one = made("alone")

    assert (one.name, one.gpu) == ("alone", True)
    assert run(one.script, tmp_path / "some_probes").stdout == "alone\n"


def test_what_it_imports_of_its_package_comes_with_it(made: Made, tmp_path: Path) -> None:
    one = made("both")
    ran = run(one.script, tmp_path / "some_probes")

    assert not one.gpu
    assert (ran.stdout, ran.stderr) == ("'it\\'s \"{VALUE}\"\\n' 3\n", "")


def test_a_traceback_names_the_module(made: Made, tmp_path: Path) -> None:
    ran = run(made("wrong").script, tmp_path / "some_probes")

    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == "AssertionError: not 4"
    assert '  File "wrong.py", line 5, in main' in ran.stderr


def test_a_module_that_is_not_there(made: Made) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        made("absent")
