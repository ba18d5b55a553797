"""A source checkout, shallow and at a tag as users have it: git keeps the originals, and uncommitted changes stay."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.installation import how_to_add
from vpatch.tree.disk import Folders
from vpatch.tree.locate import locate

from tests.conftest import Process, Program, Ran, Trees
from tests.engines import engine_of
from tests.hybrid import CHANGED, COMPANION, CONFIG, HYBRID, INTERFACE, ONLY, UPSTREAMS
from tests.needs import root_only
from tests.tiers import deep
from tests.tree.conftest import IN_GIT, clean, flagged, git
from tests.tree.steps import Step, at_each_step

CACHE = "vllm/platforms/__pycache__"


@pytest.fixture(scope="module")
def written(cloned: Path) -> Mapping[str, bytes]:
    """What the overlay makes of its files."""
    return engine_of(select(discover(), (HYBRID,))).plan(locate(cloned).read).files


def test_apply_and_revert(vpatch: Program, clone: Path, written: Mapping[str, bytes]) -> None:
    applied = vpatch("apply", "-q", clone, *ONLY, "--json")

    assert (applied.code, applied.err) == (0, "")
    assert applied.json["vllm"] == "0.20.2"
    assert applied.json["changed"] == CHANGED
    assert {file: (clone / file).read_bytes() for file in CHANGED} == written
    changed = f"?? {Path(COMPANION).parent}/\n" + "".join(f" M {file}\n" for file in UPSTREAMS)
    assert sorted(git(clone, "status", "--porcelain").splitlines()) == sorted(changed.splitlines())
    assert vpatch("status", "-q", clone, *ONLY, "--json").json["overlays"][0]["state"] == "applied"
    assert vpatch("apply", "-q", clone, *ONLY, "--json").json["changed"] == []
    assert vpatch("verify", "-q", clone, *ONLY).code == 0

    reverted = vpatch("revert", "-q", clone, "--json")

    assert (reverted.code, reverted.json["changed"]) == (0, CHANGED)
    assert clean(clone)
    assert vpatch("revert", "-q", clone, "--json").json["changed"] == []


def test_a_worktree_and_one_overlay(vpatch: Program, clone: Path, tmp_path: Path) -> None:
    git(clone, "worktree", "add", "-q", str(tmp_path / "tree"))

    assert vpatch("apply", "-q", tmp_path / "tree", *ONLY).code == 0
    assert clean(clone)
    assert vpatch("revert", "-q", tmp_path / "tree", *ONLY).code == 0
    assert clean(tmp_path / "tree")


def test_a_dirty_file(vpatch: Program, clone: Path) -> None:
    for file in (CONFIG, INTERFACE):
        (clone / file).write_bytes((clone / file).read_bytes() + b"# somebody\n")
    before = git(clone, "diff")

    cause = "it has uncommitted changes: commit or stash them, and run again"
    says = f"dirty file: {CONFIG}: {cause}\ndirty file: {INTERFACE}: {cause}\n"
    assert vpatch("apply", "-q", clone, *ONLY) == Ran(1, "", says)
    assert git(clone, "diff") == before
    assert not (clone / COMPANION).exists()


def test_a_dirty_file_that_is_not_touched(vpatch: Program, clone: Path) -> None:
    (clone / "vllm/__init__.py").write_text("dirty = 1\n")
    (clone / "vllm/new.py").write_text("unknown = 1\n")

    assert vpatch("apply", "-q", clone, *ONLY).code == 0
    assert vpatch("revert", "-q", clone).code == 0
    assert git(clone, "status", "--porcelain") == " M vllm/__init__.py\n?? vllm/new.py\n"


def test_an_unknown_file(vpatch: Program, clone: Path) -> None:
    git(clone, "rm", "-q", "--cached", CONFIG)
    git(clone, "commit", "-q", "-m", "forget it")

    says = f"unknown file: {CONFIG}: git does not have it: there would be nothing to revert to\n"
    assert vpatch("apply", "-q", clone, *ONLY) == Ran(1, "", says)
    assert git(clone, "status", "--porcelain") == "?? vllm/model_executor/\n"


def test_line_endings_of_the_checkout(vpatch: Program, clone: Path) -> None:
    """Revert restores what git would check out, not what it stores."""
    (clone / ".gitattributes").write_text("*.py text eol=crlf\n")
    git(clone, "add", ".gitattributes")
    git(clone, "commit", "-q", "-m", "crlf")
    for file in IN_GIT:
        (clone / file).unlink()
    git(clone, "checkout", "-q", "--", ".")
    before = {file: (clone / file).read_bytes() for file in IN_GIT}
    assert b"\r\n" in before[CONFIG]

    assert vpatch("apply", "-q", clone, *ONLY).code == 0
    assert (clone / CONFIG).read_bytes().count(b"\n") == (clone / CONFIG).read_bytes().count(b"\r\n")
    assert vpatch("apply", "-q", clone, *ONLY, "--json").json["changed"] == []
    assert vpatch("revert", "-q", clone).code == 0

    assert {file: (clone / file).read_bytes() for file in IN_GIT} == before
    assert clean(clone)


@pytest.mark.parametrize(
    ("place", "attribute"),
    [
        (".gitattributes", "filter=evil"),
        (".git/info/attributes", "ident"),
        deep(".git/info/attributes", "working-tree-encoding=UTF-16"),
    ],
)
def test_a_file_that_git_converts_is_refused(vpatch: Program, clone: Path, place: str, attribute: str) -> None:
    """Only git's filter knows what it was; one that leaves the file as it is does not matter."""
    (clone / place).parent.mkdir(exist_ok=True)
    (clone / place).write_text(f"*.py {attribute}\n")
    git(clone, "config", "filter.evil.smudge", f"touch {clone}/ran; cat")
    before = {file: (clone / file).read_bytes() for file in IN_GIT}
    assert vpatch("apply", "-q", clone, *ONLY).code == 0
    assert vpatch("revert", "-q", clone).code == 0
    (clone / CONFIG).write_bytes(before[CONFIG] + b"# of a filter\n")

    name = attribute.partition("=")[0]
    cause = f"git converts it on checkout, by the attribute {name}, and vpatch runs no program for that"
    assert vpatch("apply", "-q", clone, *ONLY) == Ran(1, "", f"dirty file: {CONFIG}: {cause}\n")
    assert not (clone / "ran").exists()
    assert {file: (clone / file).read_bytes() for file in IN_GIT if file != CONFIG} == {
        file: data for file, data in before.items() if file != CONFIG
    }


def test_an_edit_survives_another_apply(vpatch: Program, clone: Path, pristine: Trees) -> None:
    """A user's edit stays a user's, even if vpatch wrote the file again."""
    vpatch("apply", "-q", clone, *ONLY)
    (clone / CONFIG).write_bytes(b"somebody = 1\n" + (clone / CONFIG).read_bytes())
    (clone / INTERFACE).write_bytes((pristine("0.20.2") / INTERFACE).read_bytes())
    again = vpatch("apply", "-q", clone, *ONLY, "--json").json
    assert again["changed"] == [INTERFACE]
    assert f"{CONFIG}: edited after vpatch, line 1; `vpatch diff --edits " in str(again["notes"])
    assert (again["edited"], vpatch("verify", "-q", clone).code) == ({CONFIG: "1"}, 1)

    ran = vpatch("revert", "-q", clone)

    assert ran.err.startswith(
        f"edited after vpatch: {CONFIG}: an edit that is not vpatch's would be lost; `vpatch diff"
    )
    assert (ran.code, ran.out) == (1, "")
    shown = vpatch("diff", "--applied", clone, "--json").json
    assert (shown["edited"], "+somebody = 1" in shown["diff"]) == ({CONFIG: "1"}, True)
    (clone / CONFIG).write_bytes((clone / CONFIG).read_bytes().removeprefix(b"somebody = 1\n"))
    assert vpatch("revert", "-q", clone).code == 0
    assert clean(clone)


def test_an_edit_is_discarded_if_asked(
    vpatch: Program, clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    vpatch("apply", "-q", clone, *ONLY)
    (clone / CONFIG).write_bytes((clone / CONFIG).read_bytes() + b"# mine\n")

    assert vpatch("revert", "--force", clone).code == 0
    assert clean(clone)
    (kept,) = (tmp_path / "vpatch/discarded").iterdir()
    assert "+# mine\n" in kept.read_text()


def test_committed(vpatch: Program, clone: Path) -> None:
    vpatch("apply", "-q", clone, *ONLY)
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "patched")

    assert vpatch("status", "-q", clone, *ONLY, "--json").json["overlays"][0]["state"] == "applied"
    assert vpatch("apply", "-q", clone, *ONLY, "--json").json["changed"] == []
    ran = vpatch("revert", "-q", clone)

    assert (ran.code, ran.out) == (1, "")
    assert [line.split(": ")[:2] for line in ran.err.splitlines()] == [["cannot revert", file] for file in CHANGED]
    assert ran.err.count("revert the commit that has it") == len(CHANGED)
    assert git(clone, "status", "--porcelain") == ""


@pytest.mark.parametrize("ledger", ["{", None])
def test_without_the_note_of_what_was_written(vpatch: Program, clone: Path, ledger: str | None) -> None:
    """vpatch recognizes its own work without it: by what the overlays make of the commit's files."""
    vpatch("apply", "-q", clone, *ONLY)
    (clone / ".git/vpatch.json").unlink()
    if ledger is not None:
        (clone / ".git/vpatch.json").write_text(ledger)
    ours = (clone / CONFIG).read_bytes()
    (clone / CONFIG).write_bytes(ours + b"mine = 1\n")

    ran = vpatch("revert", "-q", clone)
    assert (ran.code, ran.err.count("edited after vpatch: "), ran.err.count(CONFIG)) == (1, 1, 1)

    (clone / CONFIG).write_bytes(ours)
    assert vpatch("revert", "-q", clone).code == 0
    assert clean(clone)


@pytest.mark.parametrize("every", [16, deep(2)])
@pytest.mark.parametrize("command", ["apply", "revert"])
def test_killed_at_any_step(
    vpatch: Program, clone: Path, written: Mapping[str, bytes], public: Path, command: str, every: int
) -> None:
    """`test_faults` kills at every step in a small tree; here one in `every` has the real files and git.

    What a kill leaves is what is on the disk then.
    """
    assert command == "apply" or vpatch("apply", "-q", clone, *ONLY).code == 0
    committed = {file: git(clone, "show", f"HEAD:{file}").encode() for file in UPSTREAMS}
    made = itertools.count(1)
    left: list[Path] = []

    def fault(step: Step) -> None:
        if (step.name != "open" or step.args[1] & os.O_CREAT) and next(made) % every == 0:
            left.append(shutil.copytree(clone, public / f"left/{step.number}", symlinks=True))

    with at_each_step(fault):
        assert vpatch(command, "-q", clone, *(ONLY if command == "apply" else ())).code == 0
    assert (len(left) + 1) * every > 15

    for number, tree in enumerate(left):
        for file, old in committed.items():
            assert (tree / file).read_bytes() in (old, written[file])
        if number % 3 == 1:
            again = shutil.copytree(tree, public / f"again/{number}", symlinks=True)
            assert vpatch("apply", "-q", again, *ONLY).code == 0
            assert vpatch("verify", "-q", again, *ONLY).code == 0
            assert not list((again / "vllm").rglob(".*"))
            assert vpatch("revert", "-q", again).code == 0
            assert clean(again)
        assert vpatch("revert", "-q", tree).code == 0
        assert clean(tree)


def test_a_note_that_cannot_be_written(vpatch: Program, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_faults.py` has the other files."""
    real = Folders.put

    def refused(tree: Folders, path: str) -> None:
        if Path(path).name == "vpatch.json":
            raise OSError(5, "Input/output error")
        real(tree, path)

    with monkeypatch.context() as fault:
        fault.setattr(Folders, "put", refused)
        ran = vpatch("apply", "-q", clone, *ONLY)

    assert ran == Ran(1, "", f"cannot write: {clone}/.git/vpatch.json: input/output error\n")
    assert clean(clone)
    assert vpatch("apply", "-q", clone, *ONLY).code == 0
    assert vpatch("revert", "-q", clone).code == 0
    assert clean(clone)


@root_only
@pytest.mark.parametrize(
    ("path", "says"),
    [
        (f"{CACHE}/interface.cpython-311.pyc", f"cannot remove bytecode of: {INTERFACE}: operation not permitted"),
        (CACHE, f"cannot remove bytecode of: {INTERFACE}: operation not permitted"),
        ("vllm", "cannot remove: vllm/_vpatch: its folder is immutable (chattr +i)"),
    ],
)
def test_a_removal_that_is_refused(vpatch: Program, clone: Path, path: str, says: str) -> None:
    assert vpatch("apply", "-q", clone, *ONLY).code == 0
    (clone / CACHE).mkdir()
    (clone / CACHE / "interface.cpython-311.pyc").touch()
    before = {file: (clone / file).read_bytes() for file in CHANGED}

    with flagged(clone / path, "i"):
        ran = vpatch("revert", "-q", clone)
        assert (ran.code, says in ran.err) == (1, True), ran.err
        assert {file: (clone / file).read_bytes() for file in CHANGED} == before

    assert vpatch("revert", "-q", clone).code == 0
    assert clean(clone)


def test_without_git(vpatch: Program, process: Process, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = process("apply", "-q", clone, *ONLY, env={"PATH": "/nowhere"})
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert ran.err.startswith(f"cannot read the checkout: {clone}: ")

    monkeypatch.setitem(sys.modules, "git", None)
    cause = f"a source checkout needs git and gitpython: {how_to_add('git')}"
    for command in ("apply", "revert"):
        assert vpatch(command, "-q", clone) == Ran(1, "", f"cannot read the checkout: {clone}: {cause}\n")
    assert vpatch("status", "-q", clone, *ONLY).code == 0


@pytest.mark.parametrize("init", [True, False])
def test_no_repository(vpatch: Program, clone: Path, *, init: bool) -> None:
    shutil.rmtree(clone / ".git")
    if init:
        git(clone, "init", "-q")  # and no commit yet
    else:
        (clone / ".git").mkdir()

    ran = vpatch("apply", "-q", clone, *ONLY)

    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert ran.err.startswith(f"git fails: {clone}: {'' if init else 'there is a .git, and yet no repository'}")
