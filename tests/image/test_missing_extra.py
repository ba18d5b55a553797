"""A missing package of the extra is reported with the command that installs it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from vpatch.installation import how_to_add

from tests.paths import ROOT
from tests.processes import UNWATCHED

CODE = """
import sys
sys.modules[sys.argv[1]] = None
from vpatch.cli import main
sys.argv[1:] = sys.argv[2:]
main()
"""


ENGINE, REGISTRY = ("--base", "x"), ("--registry", "--base", "localhost:1/x", "--tag", "localhost:1/y")


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("docker", ENGINE),
        ("elftools", (*ENGINE, "--require-arch", "sm_120")),
        ("elftools", (*REGISTRY, "--require-arch", "sm_120")),
        ("jsonschema", (str(ROOT / "images/v0.20.2.toml"),)),
        ("oras", REGISTRY),
        ("requests", ENGINE),
        ("requests", REGISTRY),
        ("zstandard", REGISTRY),
    ],
)
def test_a_missing_package_is_reported(missing: str, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", CODE, missing, "build", *arguments]
    environment = {**os.environ, **UNWATCHED}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert ran.returncode == 1
    assert ran.stderr.startswith(("cannot work on images: ", "cannot look: "))
    assert f": {missing}" in ran.stderr
    assert f": not installed: {how_to_add('image')}\n" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "spared"), [(ENGINE, "oras zstandard jsonschema elftools"), (REGISTRY, "docker elftools")]
)
def test_imports_only_what_is_needed(arguments: tuple[str, ...], spared: str) -> None:
    """Each import costs at least a tenth of a second."""
    code = f"import atexit, sys; atexit.register(lambda: print(*({set(spared.split())!r} & sys.modules.keys())))\n"
    command = [sys.executable, "-c", code + CODE, "nothing", "build", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env={"DOCKER_HOST": "unix:///nothing"})

    assert (ran.returncode, ran.stdout) == (1, "\n")
