"""Whatever refuses a rename or a removal, and wherever it is: a run does all of its work, or none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from vpatch.errors import Failure

from tests.tree.conftest import INFO, Tree, in_a_child, make_tree
from tests.tree.test_writer_precheck import flagged

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: to make files immutable, to become another user")

RUNS = {
    "apply": ("pristine", "second"),
    "apply more": ("first", "second"),
    "revert some": ("second", "first"),
    "revert": ("second", "pristine"),
}
COMPANIONS = "vllm/_vpatch"
BYTECODE = f"{COMPANIONS}/__pycache__/gone.cpython-311.pyc"
KEPT = f"{INFO}/vpatch"
DROPPED = f"{KEPT}/originals/vllm/engine/m5.py"
NOBODY = 65534
CLOSED = "permission denied to write in its folder"


def prepared(root: Path, run: str, owner: int = 0) -> tuple[Tree, dict[str, bytes]]:
    """Return a tree as a run finds it, with all that the run may remove, and what is desired of it."""
    shutil.rmtree(root, ignore_errors=True)
    tree = make_tree(root)
    wanted: dict[str, dict[str, bytes]] = {"pristine": {}, "first": tree.first, "second": tree.second}
    start, goal = RUNS[run]
    tree.settle(wanted[start])
    if start != "pristine":
        for file in (BYTECODE, f"{KEPT}/stray/file", f"{KEPT}/originals/gone/file"):
            tree.write(file, b"")
        (root / KEPT / "originals/gone/file").unlink()
    for path in (root, *root.rglob("*")):
        os.chown(path, owner, owner)
    return tree, wanted[goal]


def paths(tree: Tree) -> list[str]:
    return [path.relative_to(tree.root).as_posix() for path in (tree.root, *sorted(tree.root.rglob("*")))]


def settle(tree: Tree, desired: dict[str, bytes], uid: int = 0) -> list[str]:
    """Settle a tree, as another user if so asked; return the problems. If there are any, nothing has changed."""
    before, told = tree.snapshot(), tree.root.with_name("told")
    told.write_text("")
    told.chmod(0o666)

    def work() -> None:
        try:
            tree.settle(desired)
        except Failure as failure:
            told.write_text(str(failure))

    in_a_child(work, uid)
    problems = told.read_text().splitlines()
    if problems:
        # The note of an unclean run stays, which harms nothing.
        after = {path: content for path, content in tree.snapshot().items() if path != f"{KEPT}/under-way.json"}
        assert after == before, problems
    return problems


@pytest.mark.parametrize("run", RUNS)
def test_an_immutable_file_or_folder(tmp_path: Path, run: str) -> None:
    for path in paths(prepared(tmp_path / "site-packages", run)[0]):
        tree, desired = prepared(tmp_path / "site-packages", run)
        with flagged(tree.root / path, "i"):
            settle(tree, desired)


@pytest.mark.parametrize("mode", [0o555, 0o444, 0o333, 0o1777])
@pytest.mark.parametrize("run", RUNS)
def test_a_folder_of_another_mode(public: Path, run: str, mode: int) -> None:
    """With the sticky bit, whoever may write in a folder may remove only his own files from it."""
    root = public / "site-packages"
    for path in paths(prepared(root, run)[0]):
        tree, desired = prepared(root, run, NOBODY)
        if not (root / path).is_dir():
            continue
        if mode & 0o1000:
            for found in (root / path, *(root / path).iterdir()):
                os.chown(found, 0, 0)
        (root / path).chmod(mode)
        settle(tree, desired, NOBODY)


@pytest.mark.parametrize("run", RUNS)
def test_a_mount(public: Path, run: str) -> None:
    root = public / "site-packages"
    for path in paths(prepared(root, run)[0])[1:]:
        tree, desired = prepared(root, run)
        if subprocess.run(["mount", "--bind", root / path, root / path], check=False, capture_output=True).returncode:
            pytest.skip("needs the right to mount")
        try:
            settle(tree, desired)
        finally:
            subprocess.run(["umount", root / path], check=True)


@pytest.mark.parametrize(
    ("path", "run", "says"),
    [
        (COMPANIONS, "revert", f"cannot remove: {COMPANIONS}/first.py: {CLOSED}"),
        ("vllm", "revert", f"cannot remove: {COMPANIONS}: {CLOSED}"),
        (f"{COMPANIONS}/__pycache__", "revert", f"cannot remove: {BYTECODE}: {CLOSED}"),
        (f"{KEPT}/originals/vllm/engine", "revert some", f"cannot remove: {DROPPED}: {CLOSED}"),
        (f"{KEPT}/stray", "revert some", f"cannot remove: {KEPT}/stray/file: {CLOSED}"),
        (f"{KEPT}/originals", "revert some", f"cannot remove: {KEPT}/originals/gone: {CLOSED}"),
    ],
)
def test_what_stands_in_the_way_is_named(public: Path, path: str, run: str, says: str) -> None:
    tree, desired = prepared(public / "site-packages", run, NOBODY)
    (tree.root / path).chmod(0o555)

    assert says in settle(tree, desired, NOBODY)
    (tree.root / path).chmod(0o755)
    assert settle(tree, desired, NOBODY) == []


@pytest.mark.parametrize(
    ("path", "run"), [(BYTECODE, "revert"), (DROPPED, "revert some"), (f"{KEPT}/stray/file", "revert some")]
)
def test_an_immutable_file_is_named(tmp_path: Path, path: str, run: str) -> None:
    tree, desired = prepared(tmp_path / "site-packages", run)

    with flagged(tree.root / path, "i"):
        assert settle(tree, desired) == [f"cannot remove: {path}: it is immutable (chattr +i)"]

    assert settle(tree, desired) == []
