"""What vpatch refuses to write, and how it treats files that others changed."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.tree import backup
from vpatch.tree.guard import lock
from vpatch.tree.locate import Tree
from vpatch.tree.write_plan import SitePackages

from tests.conftest import unchanged, untouched
from tests.tree.conftest import (
    COMPANION,
    INFO,
    MODULE,
    RECORD,
    Sandbox,
    change,
    edited,
    flagged,
    mounted,
    plan_of,
    settled,
    untrue,
)
from tests.tree.steps import Step, at_each_step

Harm = Callable[[Sandbox], object]


def refuse_edit(path: str) -> str:
    return f"edited after vpatch: {path}: an edit that is not vpatch's would be lost"


@pytest.mark.parametrize("path", [MODULE, COMPANION])
def test_revert_refuses_what_a_user_edited(sandbox: Sandbox, path: str) -> None:
    pristine = sandbox.snapshot()
    sandbox.settle(sandbox.second)
    edit = sandbox.second[path] + b"mine = 1\n"
    sandbox.write(path, edit)
    sandbox.write("vllm/engine/m1.py", b"all = 'mine'\n")

    assert edited(sandbox.tree) == tuple(sorted([path, "vllm/engine/m1.py"]))
    for desired in ({}, sandbox.first | {"vllm/engine/m1.py": b"all = 'mine'\n", path: b"other\n"}):
        said = str(sandbox.refused(desired))
        assert refuse_edit(path) in said
        assert (refuse_edit("vllm/engine/m1.py") in said) is (not desired)

    for gone in (path, "vllm/engine/m1.py"):
        (sandbox.root / gone).unlink()
    sandbox.settle({})
    assert sandbox.snapshot() == pristine


def test_a_file_put_in_place_anew_is_the_new_original(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)
    new = b"value = 'of another release'\n"
    sandbox.write(MODULE, new)

    desired = sandbox.first | {MODULE: new + b"one = 1  # vpatch: one\n"}
    sandbox.settle(desired, allow_edited=True)
    assert backup.originals(sandbox.tree)[MODULE] == new
    sandbox.settle({})

    assert (sandbox.root / MODULE).read_bytes() == new


@pytest.mark.parametrize("again", [True, False])
def test_a_file_that_an_installer_wrote_with_its_row_is_not_an_edit(sandbox: Sandbox, again: bool) -> None:  # noqa: FBT001
    sandbox.settle(sandbox.first)
    new = b"value = 'of another build'\n"
    rows = (sandbox.root / RECORD).read_text()
    sandbox.write(MODULE, new)
    old = next(line for line in rows.splitlines() if line.startswith(MODULE))
    digest = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(new).digest()).rstrip(b"=").decode()
    sandbox.write(RECORD, rows.replace(old, f"{MODULE},{digest},{len(new)}").encode())
    assert untrue(sandbox.tree, [MODULE]) == []

    if again:
        sandbox.settle(sandbox.first | {MODULE: new + b"one = 1  # vpatch: one\n"})
    sandbox.settle({})

    assert (sandbox.root / MODULE).read_bytes() == new
    assert untrue(sandbox.tree, [MODULE]) == []


def test_a_new_installation_over_ours(sandbox: Sandbox) -> None:
    """The installer removed what RECORD had, and vpatch's folder with it."""
    pristine = sandbox.snapshot()
    record = (sandbox.root / RECORD).read_bytes()
    sandbox.settle(sandbox.first)
    for path, content in {**sandbox.modules, RECORD: record}.items():
        sandbox.write(path, content)
    assert sandbox.settle(sandbox.first)
    assert sandbox.settled(sandbox.first)

    sandbox.settle({})

    assert sandbox.snapshot() == pristine


def test_a_patched_tree_whose_dist_info_is_new_needs_nothing(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)
    shutil.rmtree(sandbox.root / INFO / "vpatch")
    sandbox.settle(sandbox.first)  # RECORD has rows of what is gone

    with untouched(sandbox.root):
        assert sandbox.settled(sandbox.first)
        assert untrue(sandbox.tree, sandbox.first) == []
        assert sandbox.settle({}) == ()


def test_without_a_dist_info(sandbox: Sandbox) -> None:
    tree = Tree(sandbox.root, None, None)
    for call in (lambda: change(tree, sandbox.first, None), lambda: lock(tree).__enter__()):
        says = r"no dist-info: .*: originals and provenance are kept in it"
        with unchanged(sandbox.root), pytest.raises(Failure, match=says):
            call()
    assert not settled(tree, sandbox.first, None)

    assert settled(tree, sandbox.modules, None)
    plan = plan_of(SitePackages(tree).snapshot(), sandbox.modules, None, on_edits=False)
    assert (plan.work, plan.writes.changed) == (False, ())


def rmtree(path: str) -> Harm:
    return lambda sandbox: shutil.rmtree(sandbox.root / path)


def removed(*paths: str) -> Harm:
    def harm(sandbox: Sandbox) -> None:
        for path in paths:
            (sandbox.root / path).unlink()

    return harm


def wrote(path: str, content: bytes) -> Harm:
    return lambda sandbox: sandbox.write(path, content)


def linked(path: str) -> Harm:
    """Replace a file or folder by a link to the same outside of the tree."""

    def harm(sandbox: Sandbox) -> None:
        there = sandbox.root.parent / "elsewhere"
        (sandbox.root / path).rename(there) if (sandbox.root / path).exists() else there.mkdir()
        (sandbox.root / path).symlink_to(there)

    return harm


def a_folder(sandbox: Sandbox) -> None:
    (sandbox.root / MODULE).unlink()
    (sandbox.root / MODULE).mkdir()


def flag(path: str, name: str) -> Harm:
    return lambda sandbox: flagged(sandbox.root / path, name)


def mount(path: str) -> Harm:
    """As `docker run -v ./m3.py:/.../m3.py` does: the rename would be refused half way."""
    return lambda sandbox: mounted(sandbox.root / path, sandbox.root / path)


M1, M2, M3 = "vllm/engine/m1.py", "vllm/layers/m2.py", "vllm/layers/m3.py"
KEPT, ADDED, NEW = f"{INFO}/vpatch", "vllm/engine/added.py", "vllm/mine/deep/added.py"
ORIGINALS, NOTE = f"{KEPT}/originals", f"{KEPT}/provenance.json"
IMMUTABLE, APPEND = "immutable (chattr +i)", "append-only (chattr +a)"
# What is there, what happens to it, what is desired, and texts in each of the problems.
REFUSED: dict[str, tuple[str, Harm, str, list[tuple[str, ...]]]] = {
    "missing modules": ("pristine", removed(MODULE, M1), "first", [
        (f"no such file: {path}: an overlay changes it",) for path in (MODULE, M1)
    ]),
    "lost originals": ("first", rmtree(KEPT), "second", [
        (f"no original kept: {path}: ", "reinstall vLLM") for path in (MODULE, NEW)
    ]),
    "an edited module that vpatch added": ("first", wrote(ADDED, b"# vpatch: one\nmine = 1\n"), "pristine", [
        (f"edited after vpatch: {ADDED}: an edit that is not vpatch's would be lost",)
    ]),
    "a linked folder of new modules": ("first", linked("vllm/mine"), "pristine", [("symlink",)] * 3),
    "an immutable folder of new modules": ("first", flag("vllm/mine/deep", "i"), "pristine", [
        (f"cannot remove: {NEW}: its folder is {IMMUTABLE}",), (f"cannot remove: vllm/mine/deep: it is {IMMUTABLE}",)
    ]),
    "a lost original": ("first", removed(f"{ORIGINALS}/{MODULE}"), "pristine", [(f"no original kept: {MODULE}: ",)]),
    "a kept RECORD that is none": (
        "first", wrote(f"{ORIGINALS}/{RECORD}", b"a" * 200_000), "pristine", [("bad RECORD: ", "/originals/")]
    ),
    "a folder for a file": ("pristine", a_folder, "first", [(f"cannot read: {MODULE}: ",)]),
    "a linked file": ("pristine", linked(MODULE), "first", [(f"symlink: {MODULE}: it stands for ",)]),
    "a linked folder": ("pristine", linked("vllm/layers"), "first", [
        (f"symlinked folder: {path}: it leads out of the tree, to ", "/elsewhere") for path in (M2, M3)
    ]),
    "a linked folder of companions": ("pristine", linked("vllm/_vpatch"), "first", [("symlink",)] * 3),
    "a linked folder of originals": ("pristine", linked(KEPT), "first", [("symlink",)]),
    "a mount": ("pristine", mount(M3), "first", [(f"cannot write: {M3}: it is a mount point",)]),
    "an immutable file": ("pristine", flag(M3, "i"), "first", [(f"cannot write: {M3}: it is {IMMUTABLE}",)]),
    "an append-only file": ("pristine", flag(M3, "a"), "first", [(f"cannot write: {M3}: it is {APPEND}",)]),
    "an immutable folder": ("pristine", flag("vllm/layers", "i"), "first", [
        (f"cannot write: {path}: its folder is {IMMUTABLE}",) for path in (M2, M3)
    ]),
    "an append-only folder": ("pristine", flag("vllm/layers", "a"), "first", [
        (f"cannot write: {path}: its folder is {APPEND}",) for path in (M2, M3)
    ]),
    "an immutable RECORD": ("pristine", flag(RECORD, "i"), "first", [(f"cannot write: {RECORD}: it is {IMMUTABLE}",)]),
    **{
        f"an immutable {Path(path).name} on revert": (
            "first", flag(path, "i"), "pristine", [(f"cannot remove: {path}: it is {IMMUTABLE}",)]
        )
        for path in (COMPANION, f"{ORIGINALS}/{M3}", f"{ORIGINALS}/vllm", NOTE)
    },
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(sandbox: Sandbox, case: str) -> None:
    start, harm, goal, expected = REFUSED[case]
    sandbox.settle(sandbox.goals[start])
    with ExitStack() as until:
        if isinstance(during := harm(sandbox), AbstractContextManager):
            until.enter_context(during)
        problems = list(map(str, sandbox.refused(sandbox.goals[goal]).problems))

    assert len(problems) == len(expected), problems
    for problem, texts in zip(problems, expected, strict=True):
        assert all(text in problem for text in texts), problem
    if isinstance(during, AbstractContextManager):
        assert sandbox.settle(sandbox.goals[goal])


def test_a_symlink_inside_the_tree_is_followed(sandbox: Sandbox) -> None:
    (sandbox.root / "vllm/layers").rename(sandbox.root / "vllm/real")
    (sandbox.root / "vllm/layers").symlink_to("real")

    sandbox.settle(sandbox.first)

    assert (sandbox.root / "vllm/real/m2.py").read_bytes() == sandbox.first["vllm/layers/m2.py"]


def test_flags_that_the_system_reports(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """For machines without `chattr` and file systems without flags: only the answer is injected."""
    of = (sandbox.root / M3).stat().st_ino

    def ioctl(file: int, request: int, argument: bytes) -> bytes:
        assert request == 0x80086601
        if os.fstat(file).st_ino != of:
            raise OSError(25, "Inappropriate ioctl for device")
        return bytes([0x10, *bytes(7)])

    monkeypatch.setattr("vpatch.tree.guard.fcntl.ioctl", ioctl)
    assert f"cannot write: {M3}: it is immutable" in str(sandbox.refused(sandbox.first))


@pytest.mark.parametrize("size", ["the same", "another"])
@pytest.mark.parametrize("path", [M3, COMPANION, f"{INFO}/RECORD"])
def test_a_file_that_another_program_changes_meanwhile(sandbox: Sandbox, path: str, size: str) -> None:
    """What an editor or an installer wrote is not lost."""
    old = (sandbox.root / path).read_bytes() if path != COMPANION else b""
    new = old[:-1] + b" " if size == "the same" else old + b"# mine\n"
    done: list[str] = []

    def change(step: Step) -> None:
        if step.name == "fsync" and not done:
            done.append(path)
            sandbox.write(path, new)

    says = f"cannot write: {path}: another program changed it while vpatch was at work; run again"
    with at_each_step(change), pytest.raises(Failure, match=says):
        sandbox.settle(sandbox.first)

    assert (sandbox.root / path).read_bytes() == new


def test_a_file_that_another_program_removes_meanwhile(sandbox: Sandbox) -> None:
    def remove(step: Step) -> None:
        (sandbox.root / M3).unlink(missing_ok=True) if step.name == "fsync" else None

    with at_each_step(remove), pytest.raises(Failure, match=f"cannot write: {M3}: no such file"):
        sandbox.settle(sandbox.first)
    assert not (sandbox.root / M3).exists()
