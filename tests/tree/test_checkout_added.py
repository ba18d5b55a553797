"""Modules that overlays add to a source checkout: git has none of them, and a user's own files are never removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch import AddFile
from vpatch.core.edits.data import AddData
from vpatch.core.verdict import Changeset, State
from vpatch.errors import Failure
from vpatch.manifest import sha256
from vpatch.tree import apply as changing
from vpatch.tree.checkout import Checkout
from vpatch.tree.locate import Tree

from tests.conftest import contents_of, unchanged
from tests.snippets import InsertAfter, overlay
from tests.tree.conftest import git
from tests.tree.steps import Step, at_each_step

ONE, NEW, DEEP = "vllm/engine/one.py", "vllm/engine/new.py", "vllm/mine/deep/policy.py"
TABLE, MORE = "vllm/engine/table.json", "vllm/data/0/a.json"
FILES = {"vllm/__init__.py": "", "vllm/engine/__init__.py": "", ONE: "x = 1\n", TABLE: "{}"}
DATA = (AddData(TABLE, "[1]\n", sha256(b"{}")), AddData(MORE, "{}", ""))
ITEM = overlay(
    InsertAfter(ONE, "", anchor="x = 1", new="y = 2"),
    AddFile(NEW, "x = 1\n"),
    AddFile(DEEP, "y = 1\n"),
    *(edit for data in DATA for edit in (data.companion, data)),
)


@pytest.fixture
def root(public: Path) -> Path:
    pytest.importorskip("git")
    folder = public / "clone"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "vLLM")):
        git(folder, *command)
    return folder


def opened(root: Path) -> Checkout:
    return Checkout.at(Tree(root, None, "1"))


def apply(root: Path) -> Changeset:
    return changing.apply(opened(root), [ITEM])[0]


def revert(root: Path) -> None:
    changing.revert(opened(root), [ITEM], None)


@pytest.mark.deep
@pytest.mark.parametrize("run", [apply, revert])
def test_killed_at_any_step(root: Path, public: Path, run: Callable[[Path], object]) -> None:
    """What a kill leaves is what is on the disk then."""
    before = contents_of(root)
    if run is revert:
        apply(root)
    left: list[Path] = []

    def fault(step: Step) -> None:
        if step.name != "open" or step.args[1] & os.O_CREAT:
            left.append(shutil.copytree(root, public / f"left/{step.number}", symlinks=True))

    with at_each_step(fault):
        run(root)

    assert len(left) > 20
    for tree in left:
        again = shutil.copytree(tree, public / "again", symlinks=True)
        revert(again)
        assert contents_of(again) == before, tree.name
        shutil.rmtree(again)
        apply(tree)
        assert {one.state for one in apply(tree).before} == {State.APPLIED}
        revert(tree)
        assert contents_of(tree) == before, tree.name


@pytest.mark.parametrize("file", [NEW, DEEP, MORE])
def test_a_users_file(root: Path, file: str) -> None:
    before = contents_of(root)
    apply(root)
    (root / file).write_bytes((root / file).read_bytes() + b"mine = 1\n")

    with unchanged(root), pytest.raises(Failure, match=f"edited after vpatch: {file}"):
        revert(root)

    (root / file).unlink()
    revert(root)
    assert contents_of(root) == before
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text("mine = 1\n")
    with unchanged(root):
        assert "exists already, and is another" in str(apply(root).problems[0])
        revert(root)


def test_a_data_file_of_the_commit(root: Path) -> None:
    """Its hash in the repository shows that vpatch wrote it: it has no mark."""
    before = contents_of(root)
    apply(root)
    with unchanged(root):
        apply(root)
    (root / TABLE).write_text("mine")

    with unchanged(root), pytest.raises(Failure, match=f"edited after vpatch: {TABLE}"):
        revert(root)

    git(root, "checkout", "-q", TABLE)
    revert(root)
    assert contents_of(root) == before
    (root / TABLE).write_text("mine")
    with unchanged(root):
        assert f"{TABLE}: its sha256 is" in str(apply(root).problems[0])
        revert(root)


def test_a_users_data_file_with_the_same_text_stays(root: Path) -> None:
    (root / MORE).parent.mkdir(parents=True)
    (root / MORE).write_text("{}")
    before = contents_of(root)

    for _ in range(2):
        apply(root)
    (root / ONE).write_text((root / ONE).read_text().replace("y = 2  # vpatch: demo\n", ""))
    apply(root)
    revert(root)

    assert contents_of(root) == before


def test_a_file_that_git_forgot_stays(root: Path) -> None:
    """It has marks, and vpatch wrote it; but it was there before."""
    apply(root)
    git(root, "rm", "-q", "--cached", ONE)
    git(root, "commit", "-q", "-m", "forget it")

    with unchanged(root), pytest.raises(Failure, match=f"unknown file: {ONE}: git does not have it"):
        revert(root)


def test_other_files_in_a_new_folder_stay(root: Path) -> None:
    apply(root)
    (root / "vllm/mine/notes.txt").write_text("mine")

    revert(root)

    assert git(root, "status", "--porcelain") == "?? vllm/mine/\n"
    assert [path.name for path in (root / "vllm/mine").iterdir()] == ["notes.txt"]
