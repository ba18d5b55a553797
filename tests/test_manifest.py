"""What vpatch wrote, as its records have it: one reader for a tree, a repository and an image."""

from __future__ import annotations

import json
from typing import Any

import pytest
from vpatch import manifest
from vpatch.image.config import LABEL, Base
from vpatch.image.patch import label_of
from vpatch.manifest import Written

from tests.failures import problem_of

FILE = "vllm/a.py"


@pytest.mark.parametrize(
    ("entry", "written"),
    [
        ({"before": "a", "after": ["b", "c"]}, Written("a", ("b", "c"))),
        ({"before": None, "after": []}, Written(None, ())),
        (["b"], Written(None, ("b",))),
    ],
)
def test_every_form(entry: object, written: Written) -> None:
    content = json.dumps({"schema": 1, "files": {FILE: entry}, "who": "somebody"})

    assert manifest.read(content) == (json.loads(content), {FILE: written})
    assert manifest.files_in(manifest.as_json({FILE: written})) == {FILE: written}


ENTRIES: tuple[object, ...] = ({}, 1, "x", [1], {"after": 1}, {"before": 1, "after": []})
PATHS = ("/etc/passwd", "../x", "vllm/../../x", "vllm//x", ".", "", "a\0b")
NOT_OURS = [
    *("", "{", "\ufffd", "[]", "1", "{}", '{"schema": 2, "files": {}}', '{"schema": 1, "files": []}'),
    *(json.dumps({"files": {FILE: entry}}) for entry in ENTRIES),
    *(json.dumps({"files": {path: []}}) for path in PATHS),
]


@pytest.mark.parametrize("content", NOT_OURS)
def test_what_vpatch_did_not_write(content: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        manifest.read(content)


def test_a_label_that_names_a_file_elsewhere() -> None:
    """As in a tree: what is looked up by a record is below the vLLM that it is about."""
    entry = {"before": None, "after": ["0" * 64]}
    label: dict[str, Any] = {
        "vpatch": "1",
        "vllm": "1",
        "root": "/x",
        "python": None,
        "overlays": [],
        "files": {"../shadow": entry},
    }
    config: dict[str, Any] = {"config": {"Labels": {LABEL: json.dumps(label)}}}

    why = "not what vpatch writes: '../shadow' is no path of a file in the tree"
    assert str(problem_of(label_of, Base("image", "", config))) == f"cannot read provenance: image: {why}"
