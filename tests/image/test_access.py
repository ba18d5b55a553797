"""The door says what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
sys.modules[sys.argv[1]] = None
from vpatch.cli import main
sys.argv[1:] = ["build", "--base", "x"]
main()
"""


@pytest.mark.parametrize("missing", ["docker", "elftools", "jsonschema", "oras", "requests", "zstandard"])
def test_says_how_to_install_the_extra(missing: str) -> None:
    ran = subprocess.run([sys.executable, "-c", CODE, missing], capture_output=True, text=True, check=False)

    assert ran.returncode == 1
    assert ran.stderr.startswith(("cannot work on images: ", "cannot look: "))
    assert f": {missing}" in ran.stderr
    assert ran.stderr.endswith(": not installed: pip install 'vpatch[image]'\n")
