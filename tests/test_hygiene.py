"""Checks of the repository itself: style, types, workflows and README's commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from radon.complexity import cc_visit

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / ".github/workflows").glob("*.yml"))

CHECKS = {
    "ruff": ("ruff", "check", "."),
    "format": ("ruff", "format", "--check", "."),
    "mypy": ("mypy",),
    "schema": ("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS),
    "updates": ("check-jsonschema", "--builtin-schema", "vendor.dependabot", ".github/dependabot.yml"),
    "zizmor": ("zizmor", "--offline", "--quiet", *WORKFLOWS, ".github/dependabot.yml"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_check(name: str) -> None:
    tool, *arguments = CHECKS[name]
    command = [str(Path(sys.executable).with_name(tool)), *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_action_is_pinned_by_commit() -> None:
    # A workflow of this repository that another one calls comes from the same commit.
    uses = [use for path in WORKFLOWS for use in re.findall(r"uses: (?!\./)(\S+)(.*)", (ROOT / path).read_text())]

    assert uses
    for action, comment in uses:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v[\d.]+", comment), f"{action} does not say its version"


def test_ci_runs_the_test_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()

    assert re.search(r"<!-- tests -->\n```sh\n.*pytest.*\n```", readme, re.DOTALL)
    assert "<!-- tests -->" in (ROOT / ".ci/run").read_text()
    assert all(".ci/run" in (ROOT / path).read_text() for path in WORKFLOWS if path.endswith("ci.yml"))


@pytest.mark.parametrize("folder", ["builder", "patches"])
def test_no_function_is_complex(folder: str) -> None:
    """McCabe's complexity, as radon counts it, is at most 20."""
    found = {
        f"{path.relative_to(ROOT)}:{block.lineno} {block.name}": block.complexity
        for path in (ROOT / folder).rglob("*.py")
        for block in cc_visit(path.read_text())
    }

    assert found
    assert {where: count for where, count in found.items() if count > 20} == {}


def test_no_source_file_is_long() -> None:
    lines = {
        path: path.read_text().count("\n")
        for folder in ("builder", "patches", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    }

    assert not {path: count for path, count in lines.items() if count > 350}
