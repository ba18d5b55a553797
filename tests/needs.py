"""What some tests need of a machine: without it they are skipped with a uniform reason, and fail under `CI`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
"""Mark of tests that change owners or capabilities. A CI that is not root skips them, too."""


def find(program: str) -> str | None:
    """Return the path of a program, None without one; `chromium` has several names."""
    return next(filter(None, map(shutil.which, BROWSERS if program == "chromium" else (program,))), None)


def lacking(*names: str) -> str:
    """Return the first of these that is not here, "" if all are: `root`, or the name of a program."""
    return next((name for name in names if (os.geteuid() if name == "root" else not find(name))), "")


def need(*names: str) -> None:
    """Skip the test, or fail it under `CI`, if one of these is not here. `.ci/run` installs the programs."""
    if lacks := lacking(*names):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {lacks}")


def python(version: str) -> Path:
    """Return the interpreter of a version ("3.13"), by default that of the tests; skip the test if it is not here.

    `.ci/run` installs no other Python: the jobs of the workflow run on one each.
    """
    if not version or version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return Path(sys.executable)
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob(f"{version}.*/bin/python")
    on_path = shutil.which(f"python{version}")
    for candidate in (*([Path(on_path)] if on_path else []), *of_pyenv):
        # One of pyenv's stand-ins fails if its Python is not the chosen one.
        if not subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode:
            return candidate
    pytest.skip(f"needs Python {version}")
