"""Whatever refuses a rename or a removal, in any place: a run does all of its work, or none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from vpatch.errors import Failure

from tests.needs import root_only
from tests.tiers import deep
from tests.tree.conftest import INFO, NOBODY, Sandbox, another_user, flagged, in_memory, make_sandbox, mounted
from tests.tree.steps import SCENARIOS

pytestmark = root_only

RUNS = SCENARIOS | {"apply": ("pristine", "second")}
COMPANIONS = "vllm/_vpatch"
BYTECODE = f"{COMPANIONS}/__pycache__/gone.cpython-311.pyc"
KEPT = f"{INFO}/vpatch"
DROPPED = f"{KEPT}/originals/vllm/engine/m5.py"
CLOSED = "permission denied to write in its folder"
Prepared = Callable[..., tuple[Sandbox, dict[str, bytes]]]


@pytest.fixture(scope="module")
def template() -> Iterator[Callable[[str], Sandbox]]:
    """`template(run)`: a tree that has everything that a run may remove."""
    with in_memory() as folder:

        def make(run: str) -> Sandbox:
            sandbox = make_sandbox(folder / run)
            sandbox.settle(sandbox.goals[RUNS[run][0]])
            if RUNS[run][0] != "pristine":
                for file in (BYTECODE, f"{KEPT}/stray/file", f"{KEPT}/originals/gone/file"):
                    sandbox.write(file, b"")
                (sandbox.root / KEPT / "originals/gone/file").unlink()
            return sandbox

        yield cache(make)


@pytest.fixture
def prepared(public: Path, template: Callable[[str], Sandbox]) -> Prepared:
    """`prepared(run, owner)`: a copy of the template, and what is desired of it; it replaces the last copy."""

    def prepare(run: str, owner: int = 0) -> tuple[Sandbox, dict[str, bytes]]:
        sandbox, root = template(run), public / "site-packages"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(sandbox.root, root)
        for at, _, names in os.walk(root):
            for path in (at, *(f"{at}/{name}" for name in names)):
                os.chown(path, owner, owner)
        return replace(sandbox, tree=replace(sandbox.tree, root=root)), sandbox.goals[RUNS[run][1]]

    return prepare


def paths(sandbox: Sandbox) -> list[str]:
    return [path.relative_to(sandbox.root).as_posix() for path in (sandbox.root, *sorted(sandbox.root.rglob("*")))]


def settle(sandbox: Sandbox, desired: dict[str, bytes], uid: int = 0) -> list[str]:
    """Settle a tree, as the user `uid`; return the problems. If there are any, nothing has changed."""
    before = sandbox.snapshot()
    try:
        with another_user(uid):
            sandbox.settle(desired)
    except Failure as failure:
        problems = str(failure).splitlines()
        # The note of an unclean run stays, which harms nothing.
        after = {path: content for path, content in sandbox.snapshot().items() if path != f"{KEPT}/under-way.json"}
        assert after == before, problems
        return problems
    return []


EVERY = pytest.mark.parametrize("every", [7, deep(2)])
"""One in so many of the files and folders of a tree refuses."""


@EVERY
@pytest.mark.parametrize("run", RUNS)
def test_an_immutable_file_or_folder(prepared: Prepared, run: str, every: int) -> None:
    for path in paths(prepared(run)[0])[::every]:
        sandbox, desired = prepared(run)
        with flagged(sandbox.root / path, "i"):
            settle(sandbox, desired)


@EVERY
@pytest.mark.parametrize("mode", [0o555, 0o1777, *(deep(mode) for mode in (0o444, 0o333))])
@pytest.mark.parametrize("run", RUNS)
def test_a_folder_of_another_mode(prepared: Prepared, run: str, mode: int, every: int) -> None:
    """In a folder with the sticky bit, a user can remove only their own files."""
    first = prepared(run)[0]
    for path in [path for path in paths(first) if (first.root / path).is_dir()][:: every // 2]:
        sandbox, desired = prepared(run, NOBODY)
        if mode & 0o1000:
            for found in (sandbox.root / path, *(sandbox.root / path).iterdir()):
                os.chown(found, 0, 0)
        (sandbox.root / path).chmod(mode)
        settle(sandbox, desired, NOBODY)


@EVERY
@pytest.mark.parametrize("run", RUNS)
def test_a_mount(prepared: Prepared, run: str, every: int) -> None:
    for path in paths(prepared(run)[0])[1 :: 2 * every]:
        sandbox, desired = prepared(run)
        with mounted(sandbox.root / path, sandbox.root / path):
            settle(sandbox, desired)


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
def test_the_file_that_refuses_is_named(prepared: Prepared, path: str, run: str, says: str) -> None:
    sandbox, desired = prepared(run, NOBODY)
    (sandbox.root / path).chmod(0o555)

    assert says in settle(sandbox, desired, NOBODY)
    (sandbox.root / path).chmod(0o755)
    assert settle(sandbox, desired, NOBODY) == []
