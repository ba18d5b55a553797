"""Symbolic links that replace a folder, before a run or in the middle of it: root follows none."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.tree import backup

from tests.tiers import deep
from tests.tree.conftest import INFO, MODULE, Sandbox, give_away
from tests.tree.steps import Step, at_each_step


def state(top: Path) -> dict[str, tuple[object, ...]]:
    """Return everything that a run could change in a folder: names, owners, modes, bytes."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (top, *sorted(top.rglob("*"))):
        of = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(top))] = (of.st_uid, of.st_gid, of.st_mode, content)
    return found


def swapped(folder: Path, outside: Path) -> None:
    """Replace a folder by a link, as a user with write access to its parent can."""
    folder.rename(folder.with_name(f"{folder.name}-moved"))
    folder.symlink_to(outside)


@pytest.mark.parametrize("folder", ["vllm/_vpatch", f"{INFO}/vpatch", f"{INFO}/vpatch/originals"])
def test_a_folder_that_is_swapped_as_soon_as_it_is_made(sandbox: Sandbox, public: Path, folder: str) -> None:
    """Between `mkdir` and `open`: vpatch changes the owner and the mode of what it opens."""
    outside = public / "outside"
    outside.mkdir(mode=0o711)
    give_away(sandbox.root)
    before, tree_before = state(outside), sandbox.snapshot()
    swaps: list[str] = []

    def swap(step: Step) -> None:
        made = sandbox.root / folder
        if not swaps and made.is_dir():
            swaps.append(step.name)
            made.rmdir()
            made.symlink_to(outside)

    with at_each_step(swap), pytest.raises(Failure) as failure:
        sandbox.settle(sandbox.first)

    assert swaps == ["open"]
    causes = {problem.cause for problem in failure.value.problems}
    assert causes & {"not a directory", "a symbolic link leads out of the tree"}
    assert state(outside) == before
    (sandbox.root / folder).unlink()
    sandbox.settle(sandbox.first)
    sandbox.settle({})
    assert sandbox.snapshot() == tree_before


def test_a_folder_that_is_not_the_one_that_was_made(sandbox: Sandbox, public: Path) -> None:
    """A folder with something in it is not vpatch's: its owner does not change."""
    other = public / "other"
    other.mkdir(mode=0o711)
    (other / "file").touch()
    give_away(sandbox.root)
    before, swaps = state(other), list[str]()

    def swap(step: Step) -> None:
        made = sandbox.root / "vllm/_vpatch"
        if not swaps and made.is_dir():
            swaps.append(step.name)
            made.rmdir()
            other.rename(made)

    with at_each_step(swap), pytest.raises(Failure, match="another program put a folder in its place"):
        sandbox.settle(sandbox.first)

    assert state(sandbox.root / "vllm/_vpatch") == before


@pytest.mark.parametrize(("goal", "every"), [("second", 16), deep("second", 4), deep("pristine", 4)])
@pytest.mark.parametrize("folder", ["vllm/engine", "vllm/engine/__pycache__", f"{INFO}/vpatch", INFO, "vllm"])
def test_a_folder_swapped_at_any_step(sandbox: Sandbox, public: Path, folder: str, goal: str, every: int) -> None:
    """The link leads to a folder with the same names in it."""
    sandbox.settle(sandbox.first)
    for name in ("m0", "m1"):
        sandbox.write(f"vllm/engine/__pycache__/{name}.cpython-399.pyc", b"old")
    desired = sandbox.goals[goal]
    outside = shutil.copytree(sandbox.root / folder, public / "outside")
    before = state(outside)
    with at_each_step(lambda step: None) as made:
        sandbox.copy(public / "whole").settle(desired)

    for number in range(1, len(made) + 1, every):
        run = sandbox.copy(public / "run")

        def swap(step: Step, run: Sandbox = run, number: int = number) -> None:
            if step.number == number and (run.root / folder).is_dir():
                swapped(run.root / folder, outside)

        with at_each_step(swap), suppress(Failure):
            run.settle(desired)
        assert state(outside) == before, number


OURS = f"{INFO}/vpatch"
# Where a user puts a link to a folder, what is desired then, and whether the link stays.
LINKS: dict[str, tuple[str, bool]] = {
    f"{OURS}/stray": ("first", False),
    f"{OURS}/link": ("pristine", False),
    f"{OURS}/originals/link": ("pristine", False),
    f"{OURS}/originals/vllm/engine/link": ("pristine", False),
    "vllm/_vpatch/link": ("pristine", True),
    "vllm/_vpatch/__pycache__/link": ("pristine", True),
}


@pytest.mark.parametrize("link", LINKS)
def test_a_foreign_link_blocks_nothing_and_is_not_followed(sandbox: Sandbox, tmp_path: Path, link: str) -> None:
    """vpatch removes one in its own folder; among companions it stays, like any other file of a user there."""
    goal, stays = LINKS[link]
    expected = {"pristine": sandbox.snapshot()}
    sandbox.settle(sandbox.first)
    expected["first"] = sandbox.snapshot()
    (tmp_path / "theirs").write_bytes(b"")
    (sandbox.root / link).parent.mkdir(exist_ok=True)
    (sandbox.root / link).symlink_to(tmp_path)

    sandbox.settle(sandbox.goals[goal])

    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
    assert (sandbox.root / link).is_symlink() is stays
    assert sandbox.settled(sandbox.goals[goal])
    assert stays or sandbox.snapshot() == expected[goal]


@pytest.mark.parametrize("applied", [True, False])
def test_an_original_that_is_a_link(sandbox: Sandbox, tmp_path: Path, applied: bool) -> None:  # noqa: FBT001
    """It is not read: a revert by root would copy what it leads to where everyone can read it. It is replaced."""
    (tmp_path / "secret").write_bytes(b"secret = 1\n")
    original = sandbox.root / OURS / "originals" / MODULE
    if applied:
        sandbox.settle(sandbox.first)
    original.parent.mkdir(parents=True, exist_ok=True)
    original.unlink(missing_ok=True)
    original.symlink_to(tmp_path / "secret")

    assert MODULE not in backup.read(sandbox.tree).originals
    if applied:
        with pytest.raises(Failure, match=f"no original kept: {MODULE}: "):
            sandbox.settle({})
        assert (sandbox.root / MODULE).read_bytes() == sandbox.first[MODULE]
    else:
        sandbox.settle(sandbox.first)
        assert (original.is_symlink(), original.read_bytes()) == (False, sandbox.modules[MODULE])
    assert (tmp_path / "secret").read_bytes() == b"secret = 1\n"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (MODULE, f"cannot write: {MODULE}: it is a symbolic link"),
        (f"{INFO}/RECORD", f"cannot write: {INFO}/vpatch: too many levels of symbolic links"),
    ],
)
def test_a_file_that_is_swapped_after_it_was_read(sandbox: Sandbox, tmp_path: Path, path: str, says: str) -> None:
    content = (sandbox.root / path).read_bytes()
    (tmp_path / "theirs").write_bytes(content)

    def swap(step: Step) -> None:
        if step.name == "mkdir" and not (sandbox.root / path).is_symlink():
            (sandbox.root / path).unlink()
            (sandbox.root / path).symlink_to(tmp_path / "theirs")

    with at_each_step(swap), pytest.raises(Failure, match=says):
        sandbox.settle(sandbox.first)

    assert (tmp_path / "theirs").read_bytes() == content


def test_a_tree_that_is_swapped_as_a_whole(sandbox: Sandbox, public: Path) -> None:
    outside = shutil.copytree(sandbox.root, public / "outside")
    before = state(outside)

    def swap(step: Step) -> None:
        if step.number == 3:
            swapped(sandbox.root, outside)

    with at_each_step(swap), pytest.raises(Failure):
        sandbox.settle(sandbox.first)

    assert state(outside) == before
