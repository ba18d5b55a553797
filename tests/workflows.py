"""The workflows of `.github/workflows`, for tests that run their steps."""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML

from tests.paths import ROOT


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
