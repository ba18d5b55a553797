"""Whatever refuses a rename or a removal, in any place: a run does all of its work, or none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from vpatch.errors import Failure

from tests.tree.conftest import INFO, Sandbox, in_a_child, make_sandbox
from tests.tree.test_precheck import flagged

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


def prepared(root: Path, run: str, owner: int = 0) -> tuple[Sandbox, dict[str, bytes]]:
    """Return a tree that has everything that a run may remove, and what is desired of it."""
    shutil.rmtree(root, ignore_errors=True)
    sandbox = make_sandbox(root)
    wanted: dict[str, dict[str, bytes]] = {"pristine": {}, "first": sandbox.first, "second": sandbox.second}
    start, goal = RUNS[run]
    sandbox.settle(wanted[start])
    if start != "pristine":
        for file in (BYTECODE, f"{KEPT}/stray/file", f"{KEPT}/originals/gone/file"):
            sandbox.write(file, b"")
        (root / KEPT / "originals/gone/file").unlink()
    for path in (root, *root.rglob("*")):
        os.chown(path, owner, owner)
    return sandbox, wanted[goal]


def paths(sandbox: Sandbox) -> list[str]:
    return [path.relative_to(sandbox.root).as_posix() for path in (sandbox.root, *sorted(sandbox.root.rglob("*")))]


def settle(sandbox: Sandbox, desired: dict[str, bytes], uid: int = 0) -> list[str]:
    """Settle a tree, as the user `uid`; return the problems. If there are any, nothing has changed."""
    before, told = sandbox.snapshot(), sandbox.root.with_name("told")
    told.write_text("")
    told.chmod(0o666)

    def work() -> None:
        try:
            sandbox.settle(desired)
        except Failure as failure:
            told.write_text(str(failure))

    in_a_child(work, uid)
    problems = told.read_text().splitlines()
    if problems:
        # The note of an unclean run stays, which harms nothing.
        after = {path: content for path, content in sandbox.snapshot().items() if path != f"{KEPT}/under-way.json"}
        assert after == before, problems
    return problems


@pytest.mark.parametrize("run", RUNS)
def test_an_immutable_file_or_folder(tmp_path: Path, run: str) -> None:
    for path in paths(prepared(tmp_path / "site-packages", run)[0]):
        sandbox, desired = prepared(tmp_path / "site-packages", run)
        with flagged(sandbox.root / path, "i"):
            settle(sandbox, desired)


@pytest.mark.parametrize("mode", [0o555, 0o444, 0o333, 0o1777])
@pytest.mark.parametrize("run", RUNS)
def test_a_folder_of_another_mode(public: Path, run: str, mode: int) -> None:
    """In a folder with the sticky bit, a user can remove only their own files."""
    root = public / "site-packages"
    for path in paths(prepared(root, run)[0]):
        sandbox, desired = prepared(root, run, NOBODY)
        if not (root / path).is_dir():
            continue
        if mode & 0o1000:
            for found in (root / path, *(root / path).iterdir()):
                os.chown(found, 0, 0)
        (root / path).chmod(mode)
        settle(sandbox, desired, NOBODY)


@pytest.mark.parametrize("run", RUNS)
def test_a_mount(public: Path, run: str) -> None:
    root = public / "site-packages"
    for path in paths(prepared(root, run)[0])[1:]:
        sandbox, desired = prepared(root, run)
        if subprocess.run(["mount", "--bind", root / path, root / path], check=False, capture_output=True).returncode:
            pytest.skip("needs the right to mount")
        try:
            settle(sandbox, desired)
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
def test_the_file_that_refuses_is_named(public: Path, path: str, run: str, says: str) -> None:
    sandbox, desired = prepared(public / "site-packages", run, NOBODY)
    (sandbox.root / path).chmod(0o555)

    assert says in settle(sandbox, desired, NOBODY)
    (sandbox.root / path).chmod(0o755)
    assert settle(sandbox, desired, NOBODY) == []


@pytest.mark.parametrize(
    ("path", "run"), [(BYTECODE, "revert"), (DROPPED, "revert some"), (f"{KEPT}/stray/file", "revert some")]
)
def test_an_immutable_file_is_named(tmp_path: Path, path: str, run: str) -> None:
    sandbox, desired = prepared(tmp_path / "site-packages", run)

    with flagged(sandbox.root / path, "i"):
        assert settle(sandbox, desired) == [f"cannot remove: {path}: it is immutable (chattr +i)"]

    assert settle(sandbox, desired) == []
