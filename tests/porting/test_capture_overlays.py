"""What vpatch applied to a vLLM is its own; what was done before, between and after is captured."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from vpatch.manifest import sha256

from tests.conftest import Program, Ran, untouched
from tests.hybrid import ARG_UTILS, ATTENTION
from tests.porting.installed import HAND, Capture, edit, the_file

TWO = ("--overlay", "turboquant-hybrid", "--overlay", "turboquant-workspace")


def offered(vpatch: Program, tree: Path, *where: str | Path) -> bool:
    """Whether messages on an edit name `capture`; all of them do, or none."""
    commands = ("status", "verify", "apply --check", "revert", "doctor", "diff --edits")
    with untouched(tree):
        ran = [vpatch(*one.split(), tree, *(() if one == "revert" else where)) for one in commands]
    said = {one: f"`vpatch capture {tree}`" in done.err + done.out for one, done in zip(commands, ran, strict=True)}
    assert len({*said.values()}) == 1, said
    return said["status"]


def applied(vpatch: Program, ran: Ran, tree: Path, overlays: Sequence[str]) -> None:
    """Run the commands that `capture` names: nothing is an edit any longer."""
    said = ran.err.splitlines()[-1]
    for command in re.findall("`vpatch ([^`]*)`", said):
        done = vpatch(*shlex.split(command))
        assert done.code == 0, done.err
    found = vpatch("verify", tree, "--patches", tree.parent / "patches", "--json").json
    assert found["problems"] == []
    assert [one["id"] for one in found["overlays"] if one["state"] == "applied"] == [*overlays], said


@pytest.mark.deep
@pytest.mark.usefixtures("offline")
def test_what_vpatch_applied_is_its_own(vpatch: Program, capture: Capture, tree: Path, tmp_path: Path) -> None:
    """An edit on top of it is captured alone, with the originals that vpatch keeps."""
    assert vpatch("apply", *TWO, tree).code == 0

    assert capture(tree, pristine=False).err.endswith("Nothing to capture: every module is as it was installed.\n")
    assert capture(tree).code == 0

    edit(tree, ATTENTION, lambda text: text.replace("import functools\n", "import functools\n\n_LIMIT = 4\n", 1))
    ran = capture(tree, pristine=False)

    assert ran.code == 0, ran.err
    assert ran.out == f"  {ATTENTION}  changed\n{tmp_path}/patches/captured.vpatch\n"
    assert f"note: {ATTENTION}: changed on top of turboquant-hybrid, turboquant-workspace\n" in ran.err
    (change,) = the_file(tmp_path).changes
    assert [line for line in change.text.splitlines() if line[0] in "+-"] == ["+_LIMIT = 4"]
    ran = capture(tree, "--force")
    assert ran.code == 0
    assert the_file(tmp_path).changes == (change,)
    applied(vpatch, ran, tree, ["captured", *TWO[1::2]])


def test_an_edit_before_vpatch(vpatch: Program, capture: Capture, tree: Path, tmp_path: Path) -> None:
    """It is among the originals that vpatch keeps."""
    edit(tree, ARG_UTILS, lambda text: f"{text}\n\n_LIMIT = 4\n")
    assert vpatch("apply", *TWO, tree).code == 0

    assert capture(tree).code == 0
    (change,) = the_file(tmp_path).changes
    assert [line for line in change.text.splitlines() if line[0] in "+-"] == ["+_LIMIT = 4"]


def test_an_edit_between_two_overlays(vpatch: Program, capture: Capture, tree: Path, tmp_path: Path) -> None:
    """No run wrote what both make of the original."""
    assert vpatch("apply", *TWO[:2], tree).code == 0
    edit(tree, ATTENTION, lambda text: text.replace("import functools\n", "import functools\n\n_LIMIT = 4\n", 1))
    assert vpatch("apply", *TWO, tree).code == 0

    assert capture(tree).code == 0
    (change,) = the_file(tmp_path).changes
    assert [line for line in change.text.splitlines() if line[0] in "+-"] == ["+_LIMIT = 4"]


def test_an_edit_of_what_an_overlay_inserted_by_another_version(
    vpatch: Program, capture: Capture, tree: Path, tmp_path: Path
) -> None:
    """What the overlay made of the module cannot be told."""
    assert vpatch("apply", *TWO, tree).code == 0
    (note,) = tree.glob("*.dist-info/vpatch/provenance.json")
    note.write_text(note.read_text().replace(sha256((tree / ATTENTION).read_bytes()), "0" * 64))
    edit(tree, ATTENTION, lambda text: text.replace("  # vpatch: turboquant-workspace", ""))

    ran = capture(tree)

    assert ran.code == 1
    assert ran.err.splitlines()[1:] == [
        f"cannot capture: {ATTENTION}: edited after vpatch, and other overlays are installed than vpatch "
        "applied; install the vpatch, and the packages of overlays, that applied them",
        "Nothing was written.",
    ]


@pytest.mark.deep
def test_an_edit_of_what_an_overlay_of_vpatch_inserted(
    vpatch: Program, capture: Capture, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody but vpatch can change that overlay, and its companion keeps the edit from being a patch file."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tree.parent / "state"))
    assert vpatch("apply", *TWO[:2], tree).code == 0
    edit(tree, ARG_UTILS, lambda text: text.replace("skip_layers(model_config)  # v", "skip_layers(None)  # v", 1))
    edited = (tree / ARG_UTILS).read_bytes()

    assert not offered(vpatch, tree)
    ran = capture(tree)
    says = "so no patch file can have it: undo it, or keep it as a diff, which "
    assert "it changes code of turboquant-hybrid; that belongs to vpatch " in ran.err
    assert f"{says}`vpatch revert --force {tree}` writes, with the commands that make it again" in ran.err
    said = vpatch("revert", "--force", tree).err
    assert vpatch("apply", *TWO[:2], tree).code == 0
    (again,) = re.findall("`(patch [^`]*)`", said)
    subprocess.run(shlex.split(again), check=True)
    assert (ran.code, (tree / ARG_UTILS).read_bytes()) == (1, edited)


COUNT = """\
Format: 1
Subject: Count requests.
Base: 0.20.2

--- vllm/v1/core/sched/request_queue.py
@@ FCFSRequestQueue.add_request
+self.seen = 1
 self.append(request)
"""
ALSO = """\
Format: 1
Subject: Count what comes back.
Base: 0.20.2

--- vllm/v1/core/sched/request_queue.py
@@ FCFSRequestQueue.prepend_request
+self.back = 1
 self.appendleft(request)
"""
EDITS = {
    "what it inserted": (
        ("self.seen = 1", "self.seen = 2"),
        f"cannot capture: {HAND}: line 80: it changes code of count-them; make it in count-them.vpatch instead: "
        "`vpatch revert --force --overlay count-them {tree}` discards it here, with what else was edited there, and "
        "`vpatch apply {tree}`, with its options as before, applies count-them.vpatch anew\n",
    ),
    "beside it": (
        ("        self.append(request)\n", "        self.more = 1\n        self.append(request)\n"),
        "note: with the overlays that are applied, it does not fit: conflict: ",
    ),
    "elsewhere, with a comment": (
        (
            "        return self.popleft()\n",
            "        self.more = 1\n        value = 1\n        # so\n        return self.popleft()\n",
        ),
        f"note: {HAND}: a patch file has no comment beside code that stays: `# so`\n",
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize(("change", "says"), EDITS.values(), ids=EDITS)
def test_it_is_proven_on_the_originals(
    vpatch: Program, capture: Capture, tree: Path, tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    """An edit of what an overlay inserted has nothing to change there; one beside it cannot have that overlay."""
    two = {"also-them": ALSO, "count-them": COUNT}
    for name, text in two.items():
        (tmp_path / f"{name}.vpatch").write_text(text)
        assert vpatch("apply", tree, "--patches", tmp_path / f"{name}.vpatch", "--overlay", name).code == 0
    edit(tree, HAND, lambda text: text.replace(*change, 1))

    refused = says.startswith("cannot")
    assert offered(vpatch, tree, "--patches", tmp_path / "count-them.vpatch") is not refused
    ran, says = capture(tree), says.replace("{tree}", str(tree))

    assert (ran.code, says in ran.err) == (refused, True), ran.err
    assert (tmp_path / "patches/captured.vpatch").exists() is not refused
    if refused:
        assert vpatch(*shlex.split(re.findall("`vpatch (revert [^`]*)`", ran.err)[0])).code == 0
    else:
        for name in two:
            (tmp_path / f"{name}.vpatch").rename(tmp_path / f"patches/{name}.vpatch")
        alone = "without count-them: " in ran.err
        assert f"To apply it in place of the edit{', without count-them' * alone}: `vpatch revert --force " in ran.err
        assert ("revert --force --overlay count-them " in ran.err) is alone
        applied(vpatch, capture(tree, "--force"), tree, ["also-them", "captured", *(() if alone else ("count-them",))])
