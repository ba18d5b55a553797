"""Issue forms, the policy on security, commit hooks and updates agree with the repository and the program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML
from vpatch.cli.main import _COMMANDS

from tests.__main__ import CHOOSER, FORMS
from tests.paths import ROOT

PAGES = ("SECURITY.md", "CONTRIBUTING.md", "docs/action.md", ".github/pull_request_template.md")


def load(path: str) -> Any:
    return YAML(typ="safe").load(ROOT / path)


def texts(node: Any) -> Iterator[str]:
    """Yield every text of a parsed form."""
    if isinstance(node, str):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from texts(child)


def forms() -> dict[str, Any]:
    return {Path(path).stem: load(path) for path in FORMS if path != CHOOSER}


def test_there_is_a_form_for_each_kind_of_report() -> None:
    """A drift is reported with the output of `status`."""
    found = forms()
    (field,) = (field for field in found["drift"]["body"] if field.get("id") == "status")

    assert found.keys() == {"bug", "drift", "overlay"}
    assert {tuple(form["labels"]) for form in found.values()} == {(name,) for name in found}
    for form in found.values():
        ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(ids) == len(set(ids))
    assert "`vpatch status --json`" in field["attributes"]["label"]
    assert (field["attributes"]["render"], field["validations"]) == ("json", {"required": True})


@pytest.mark.parametrize("name", ["bug", "drift", "overlay", *PAGES])
def test_every_command_exists_with_its_options(name: str) -> None:
    text = (ROOT / name).read_text() if name in PAGES else "\n".join(texts(forms()[name]))
    found = re.findall(r"(?:`|bin/)vpatch (\w+)([^`\n]*)", text)

    assert found or name in PAGES
    for command, rest in found:
        made = getattr(import_module(f"vpatch.cli.{_COMMANDS[command]}"), f"{command}_command")
        assert isinstance(made, click.Command)
        known = {option for one in made.params for option in one.opts}
        words = takewhile(lambda word: word != "#", rest.split())
        assert {word for word in words if word.startswith("-")} <= known, f"{command}{rest}"
