"""A missing package of the extra is reported with the command that installs it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from vpatch.installation import how_to_add

from tests.paths import ROOT
from tests.processes import UNWATCHED
from tests.tiers import deep

CODE = """
import atexit, sys
atexit.register(lambda: print(*({*sys.argv[2].split()} & {*sys.modules})))
sys.modules[sys.argv[1]] = None
from vpatch.cli import main
sys.argv[1:] = sys.argv[3:]
main()
"""
ENGINE, REGISTRY = ("--base", "x"), ("--registry", "--base", "localhost:1/x", "--tag", "localhost:1/y")
ARCH = ("--require-arch", "sm_120")


def build(missing: str, spared: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE, missing, spared, "build", *arguments]
    environment = {**os.environ, **UNWATCHED, "DOCKER_HOST": "unix:///nothing"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("docker", ENGINE),
        deep("elftools", (*ENGINE, *ARCH)),
        deep("elftools", (*REGISTRY, *ARCH)),
        deep("jsonschema", (str(ROOT / "images/v0.20.2.toml"),)),
        deep("oras", REGISTRY),
        deep("requests", ENGINE),
        deep("requests", REGISTRY),
        deep("zstandard", REGISTRY),
    ],
)
def test_a_missing_package_is_reported(missing: str, arguments: tuple[str, ...]) -> None:
    ran = build(missing, "", *arguments)

    assert ran.returncode == 1
    assert ran.stderr.startswith(("cannot work on images: ", "cannot look: "))
    assert f": {missing}" in ran.stderr
    assert f": not installed: {how_to_add('image')}\n" in ran.stderr


@pytest.mark.deep
@pytest.mark.parametrize(
    ("arguments", "spared"),
    [(ENGINE, "oras zstandard jsonschema elftools"), (REGISTRY, "docker elftools")],
    ids=["engine", "registry"],
)
def test_imports_only_what_is_needed(arguments: tuple[str, ...], spared: str) -> None:
    """Each import costs at least a tenth of a second."""
    ran = build("nothing", spared, *arguments)

    assert (ran.returncode, ran.stdout) == (1, "\n")
