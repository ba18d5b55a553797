"""The workflows of `.github/workflows`, for tests that run their steps."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.paths import ROOT
from tests.processes import UNWATCHED


def workflow(name: str) -> dict[str, Any]:
    """Parse a workflow."""
    found = YAML(typ="safe").load(ROOT / f".github/workflows/{name}.yml")
    assert isinstance(found, dict)
    return found


def step(name: str, job: str, which: str) -> dict[str, Any]:
    """Return the step of a job that has the id `which`."""
    (found,) = (one for one in workflow(name)["jobs"][job]["steps"] if one.get("id") == which)
    assert isinstance(found, dict)
    return found


def bash(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script of a step in a folder, with more environment, as the runner does."""
    env = {**os.environ, **UNWATCHED, **environment}
    command = ["bash", "-e", "-c", script]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def outputs(file: Path) -> dict[str, str]:
    """Read what a step wrote to `$GITHUB_OUTPUT`, as the runner does."""
    found, lines = {}, iter(file.read_text().splitlines())
    for line in lines:
        name, operator, end = line.partition("<<")
        if operator and "=" not in name:
            found[name] = "\n".join(itertools.takewhile(end.__ne__, lines))
        else:
            name, _, found[name] = line.partition("=")
    return found
