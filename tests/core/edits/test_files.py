"""AddFile: a companion module comes, stays as it is, and is never put over another file."""

from __future__ import annotations

import pytest
from vpatch import AddFile, Companion
from vpatch.core.verdict import State

from tests.snippets import Files, applied, drifts, make, overlay, verdict

NEW = "vllm/_vpatch/new.py"
EDIT = AddFile(NEW, "x = 'é'\n")


def test_a_file_is_added_with_the_mark_first() -> None:
    assert applied({}, overlay(EDIT)) == {NEW: "# vpatch: demo\nx = 'é'\n".encode()}


@pytest.mark.parametrize(
    "data", [b"x = 1\n", b"# vpatch: demo\nx = 2\n", "# vpatch: demo\r\nx = 'é'\r\n".encode(), b""]
)
def test_another_file_of_that_name_is_drift(data: bytes) -> None:
    drifts({NEW: data}, EDIT, "other contents" if b"vpatch" not in data else "another version"[:0] or "drifted")


def test_marks_in_the_text_of_a_companion_are_its_own() -> None:
    item = overlay(AddFile(NEW, "# vpatch: demo\n# vpatch: demo\n"))

    assert verdict(applied({}, item), item).state is State.APPLIED


def test_two_overlays_cannot_add_one_file() -> None:
    changeset = make({}, overlay(EDIT, name="one"), overlay(EDIT, name="two"))

    assert [v.state for v in changeset.before] == [State.CONFLICT] * 2


@pytest.mark.parametrize("file", ["vllm/new.py", "/vllm/_vpatch/x.py", "../vllm/_vpatch/x.py"])
def test_files_of_ours_have_their_own_folder(file: str) -> None:
    with pytest.raises(ValueError, match="is not below vllm/_vpatch/"):
        AddFile(file, "")


def test_a_companion_is_a_module_of_a_package() -> None:
    (edit,) = Companion("vpatch.errors").files

    assert edit.file == "vllm/_vpatch/errors.py"
    assert edit.text.startswith('"""What can go wrong')
    files: Files = applied({}, overlay(edit))
    assert list(files) == [edit.file]
