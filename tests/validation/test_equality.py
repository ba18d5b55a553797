"""The comparison of two commits: which differences it reports, and which it ignores."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.validation.equality import broken_promises, compare
from tests.validation.recording import COPY, Record, changes, form

STATUS = {"overlays": [{"id": "x", "state": "pending", "because": "one reason"}]}


def record(**changed: Any) -> Record:
    return {"default: status --json": {"exit": 0, "out": STATUS, "err": "", "files": {}, **changed}}


@pytest.mark.parametrize(
    ("new", "line"),
    [
        (record(exit=1), "$.exit: 0 -> 1"),
        (record(exit=False), "$.exit: 0 -> false"),
        (record(err="a\nb"), '$.err: "" -> "a\\nb"'),
        (record(out={"overlays": []}), f"$.out.overlays[0]: {json.dumps(STATUS['overlays'][0])} -> (absent)"),
        (record(files={"a.py": None}), "$.files.a.py: (absent) -> null"),
    ],
)
def test_a_difference_names_the_command_the_path_and_both_values(new: Record, line: str) -> None:
    assert [str(one) for one in compare(record(), new, syntax=False)] == [f"default: status --json: {line}"]


def test_only_a_text_under_because_may_differ_and_a_text_names_its_line() -> None:
    other = {"overlays": [{**STATUS["overlays"][0], "because": "another"}]}
    (reason,) = compare(record(), record(out=other), syntax=False)
    (found,) = compare(record(err="a\nb\nbecause"), record(err="a\nb\nd"), syntax=False)

    assert reason.is_reason
    assert (found.path, found.is_reason) == ("$.err, line 3", False)


def test_by_syntax_only_the_form_of_a_file_and_the_files_of_a_diff_count() -> None:
    old, other, same = (
        record(files={"a.py": {"mode": "100644", "sha256": letter * 64, "form": digit * 32}})
        | {"default: diff": {"out": f"--- a/{file}\n+++ b/{file}\n@@ -1 +1 @@\n-1\n+2  # {letter}\n"}}
        for letter, digit, file in (("a", "0", "x.py"), ("b", "1", "y.py"), ("b", "0", "x.py"))
    )

    assert compare(old, same, syntax=False)
    assert not compare(old, same, syntax=True)
    assert [one.path for one in compare(old, other, syntax=True)][:1] == ["$.files.a.py.form"]
    assert len(compare(old, other, syntax=True)) > 1


def test_a_second_apply_that_writes_and_a_revert_that_leaves_something_are_found() -> None:
    left = {"a.py": None}
    found = broken_promises(
        {
            "x: apply --json": {"files": {}},
            "x: apply --json (again)": {"files": left},
            "x: revert --json": {"files": left},
            "x: revert --overlay x --json": {"files": left},
            COPY: {"files": left},
        }
    )

    assert list(found) == [
        "x: apply --json (again): writes",
        "x: revert --json: leaves changes in a.py",
        f"{COPY}: leaves changes in a.py",
    ]


@pytest.mark.parametrize(
    ("name", "one", "other", "equal"),
    [
        ("a.py", 'def f():\n    """Doc."""\n    return 1\n', "def f():\n    return 1  # why\n", True),
        ("a.py", "def f():\n    return 1\n", "def f():\n    return 2\n", False),
        ("a.py", "x = 'text'\n", "x = 'other'\n", False),
        ("RECORD", "a.py,sha256=ab_c-,12\n", "a.py,sha256=xyz,9\n", True),
        ("RECORD", "a.py,sha256=abc,12\n", "b.py,sha256=abc,12\n", False),
        ("provenance.json", f'{{"after": ["{"a" * 64}"]}}', f'{{"after": ["{"b" * 64}"]}}', True),
    ],
)
def test_form_ignores_comments_docstrings_and_hashes(name: str, one: str, other: str, *, equal: bool) -> None:
    assert (form(name, one.encode()) == form(name, other.encode())) == equal


def test_changes_are_those_of_content_and_mode(tmp_path: Path) -> None:
    pristine, tree = tmp_path / "pristine", tmp_path / "tree"
    (pristine / "folder").mkdir(parents=True)
    for name in ("same", "gone", "edited", "mode"):
        (pristine / "folder" / name).write_text(name)
    shutil.copytree(pristine, tree, copy_function=os.link)
    for name, text in (("same", "same"), ("edited", "other"), ("new", "new"), ("mode", "mode")):
        (tree / "folder" / name).unlink(missing_ok=True)
        (tree / "folder" / name).write_text(text)
    (tree / "folder/mode").chmod(0o600)
    (tree / "folder/gone").unlink()

    assert changes(pristine, tree).keys() == {"folder/edited", "folder/gone", "folder/mode", "folder/new"}
