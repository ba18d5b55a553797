"""docs/recipes/github-actions.md: its workflows are valid, and its steps do what the page says."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.__main__ import failure
from tests.conftest import Trees, environment
from tests.docs.page import blocks
from tests.paths import ROOT, link
from tests.workflows import act

PAGE = [(block.mark, block.text) for block in blocks(ROOT / "docs/recipes/github-actions.md")]
WORKFLOWS = {mark.removeprefix("file: .github/workflows/"): text for mark, text in PAGE if mark.startswith("file: ")}
SCHEMA = ("check-jsonschema", "--builtin-schema", "vendor.github-workflows")


def test_the_workflows_are_valid(tmp_path: Path) -> None:
    for name, text in WORKFLOWS.items():
        (tmp_path / name).write_text(text)

    assert failure([*SCHEMA, *map(str, tmp_path.iterdir())]) == ""
    assert WORKFLOWS.keys() == {"test.yml", "matrix.yml"}


@pytest.mark.deep
def test_the_steps_patch_and_check(slim: Trees, tmp_path: Path) -> None:
    """In a job whose `python3` has vLLM."""
    packages = environment(tmp_path / "job/.venv")
    shutil.copytree(slim("0.20.2"), packages, copy_function=link, dirs_exist_ok=True)
    yaml = YAML(typ="safe")
    steps = yaml.load(WORKFLOWS["test.yml"])["jobs"]["test"]["steps"]
    (patch,) = (step for step in steps if step.get("uses", "").startswith("vpatch/vpatch@"))
    ((check,),) = (yaml.load(text) for mark, text in PAGE if not mark)

    def done(step: dict[str, dict[str, object]]) -> int:
        inputs = {name: str(value).lower() if value is True else str(value) for name, value in step["with"].items()}
        path = {"PATH": f"{tmp_path}/job/.venv/bin:/usr/bin:/bin"}
        return act(tmp_path / "job", inputs, path, installed=Path(sys.prefix)).code

    assert [done({"with": {}, **step}) for step in (check, patch, check)] == [1, 0, 0]
