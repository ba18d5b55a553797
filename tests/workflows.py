"""The workflows of `.github/workflows` and the action in `action.yml`, for tests that run their steps."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Acted:
    """The result of a run of the action: of the step that failed, or else of the last one."""

    code: int
    out: str
    err: str
    outputs: Mapping[str, str]


def act(
    folder: Path, inputs: Mapping[str, str], environment: Mapping[str, str], *, installed: Path | None = None
) -> Acted:
    """Run the steps of `action.yml` as the runner does; of the expressions, it knows those that only name something.

    With `installed`, an environment that has vpatch, the step that installs vpatch is left out.
    """
    action = YAML(typ="safe").load(ROOT / "action.yml")
    assert inputs.keys() <= action["inputs"].keys()
    known = {f"inputs.{name}": inputs.get(name, about["default"]) for name, about in action["inputs"].items()}
    known["github.action_path"] = str(ROOT)
    if installed:
        known["steps.install.outputs.venv"] = str(installed)

    def value(text: str) -> str:
        return re.sub(r"\$\{\{ (\S+) \}\}", lambda found: known.get(found[1], ""), text)

    output = folder / "output"
    for one in action["runs"]["steps"][bool(installed) :]:
        assert one["shell"] == "bash"
        output.write_text("")
        env = {name: value(text) for name, text in one["env"].items()}
        ran = bash(one["run"], folder, **environment, **env, GITHUB_OUTPUT=str(output), RUNNER_TEMP=str(folder))
        known |= {f"steps.{one['id']}.outputs.{name}": text for name, text in outputs(output).items()}
        if ran.returncode:
            break
    found = {name: value(about["value"]) for name, about in action["outputs"].items()}
    return Acted(ran.returncode, ran.stdout, ran.stderr, found)
