"""The comparison of two commits: what it records, and which changes of a tree it sees."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.validation.equality import Program, changes


def test_a_record_names_no_folder_and_is_of_the_sources_of_the_program(tmp_path: Path) -> None:
    one, other = (Program(None, tmp_path / name) for name in ("one", "other"))
    catalogue = other.work / "source/builder/vpatch/cli/__init__.py"
    catalogue.write_text(f"{catalogue.read_text()}\nprint('changed')\n")
    for program in (one, other):
        program.run("status", program.work / "source")

    assert one.record[0] == "$ vpatch status /WORK/source"
    assert [*other.record[:2], "changed"] == [*one.record[:2], "changed"]
    assert "changed" in other.record
    assert "changed" not in one.record


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

    found = [line.partition(":")[0] for line in changes(pristine, tree)]
    assert found == ["folder/gone", "folder/edited", "folder/mode", "folder/new"]
