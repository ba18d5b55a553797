"""Messages, `--help` and docstrings are in plain words: phrases over which a reader stumbles only become fewer."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.paths import ROOT

PHRASES = {
    r"a person must": 1,
    r"what is what": 0,
    r"what it is to": 0,
    r"by how much not": 0,
    r"(?:and|,) says? so": 1,
    r"no more": 0,
    r"any more": 4,
    r"as it is": 5,
    r"nobody": 6,
    r"somebody": 2,
    r"so many": 8,
    r"there (?:is|are) none": 10,
    r"those that": 29,
    r"whatever": 11,
    r"(?<!no\s)such(?!\sas)": 12,  # "no such file" and "such as" are plain
}
"""By phrase, how often vpatch still says it. Write the sentence anew, and take one off the number."""


@cache
def texts() -> list[tuple[str, str]]:
    """Return each string of each module, docstrings too, with its place. Comments are no strings."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node.value)
        for path in sorted((ROOT / "builder").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@pytest.mark.parametrize(("phrase", "most"), PHRASES.items())
def test_a_phrase_becomes_rarer(phrase: str, most: int) -> None:
    form = re.compile(rf"\b{phrase}\b".replace(" ", r"\s+"), re.IGNORECASE)
    found = [place for place, text in texts() for _ in form.finditer(text)]

    assert len(found) <= most, found
