"""What a newcomer types first, and what vpatch says to type instead."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from vpatch.cli.hints import WAYS
from vpatch.errors import shell

from tests.conftest import Program, Trees
from tests.hybrid import ONLY

# The command line, and the last line of the answer.
HINTS = {
    "undo": "No such command 'undo': did you mean `vpatch revert`?",
    "uninstall": "No such command 'uninstall': did you mean `vpatch revert`?",
    "help remove": "No such command 'remove': did you mean `vpatch revert`?",
    "install .": "No such command 'install': did you mean `vpatch apply`?",
    "upgrade": "No such command 'upgrade': what an upgrade brings: `vpatch matrix --from 0.24.0 --to 0.33.0`",
    "version": "No such command 'version': did you mean `vpatch --version`?",
    "search mtp": "No such command 'search': did you mean `vpatch find`?",
    "matrix 0.26.0": "Got unexpected extra argument (0.26.0): did you mean `vpatch matrix --vllm 0.26.0`?",
    "matrix 0.24.0 v0.33.0": (
        "Got unexpected extra arguments (0.24.0 v0.33.0): did you mean `vpatch matrix --from 0.24.0 --to v0.33.0`?"
    ),
    "list it's": """Got unexpected extra argument (it's): `vpatch find 'it'"'"'s'` searches the overlays""",
    "rebase my-fix 0.26.0": "Missing option '--onto': for example `vpatch rebase my-fix --onto 0.33.0`",
    "rebase 0.33.0 patches/my-fix.vpatch": (
        "Missing option '--onto': the patch, a file or an id, comes first, the release behind --onto"
    ),
    "fetch 0.20.2": "Missing argument 'DIR': for example `vpatch fetch 0.20.2 vllm-0.20.2`",
    "status --vllm 0.20.2": (
        "No such option '--vllm': for example `vpatch matrix --vllm 0.33.0`, or `vpatch fetch 0.33.0 vllm-0.33.0`, "
        "whose folder is a TREE"
    ),
    "find slow --vllm 0.20.2": (
        "No such option '--vllm': for example `vpatch matrix --vllm 0.33.0`, or `vpatch fetch 0.33.0 vllm-0.33.0`, "
        "whose folder is a TREE"
    ),
    "plan MODEL -tp 2": "No such option '-t': for two GPUs: --tensor-parallel-size 2",
    "plan MODEL --gpus 2": "No such option '--gpus': for two GPUs: --tensor-parallel-size 2",
    "apply -y": "No such option '-y': it asks no question: leave it out",
    "apply --all": "No such option '--all': all that are not opt-in is the default: leave it out",
    "apply --force": (
        "No such option '--force': it never overwrites what others edited: `vpatch diff --edits` shows that, "
        "`vpatch revert --force` discards it"
    ),
    "build --base IMAGE --registry host:5000/me/vllm:v1": (
        "--registry takes no value: name the new image by --tag host:5000/me/vllm:v1"
    ),
    "status 0.24.0": (
        "no vllm: 0.24.0: no such folder; for a release: `vpatch matrix --vllm 0.24.0`, or on its sources, "
        "`vpatch fetch 0.24.0 vllm-0.24.0`"
    ),
    "build vllm/vllm-openai:v0.20.2": (
        "no such file: vllm/vllm-openai:v0.20.2: not a *.toml; to build on an image: "
        "`vpatch build --base vllm/vllm-openai:v0.20.2`"
    ),
    # What is in no table keeps click's words.
    "fetch vllm-0.24.0": "Missing argument 'DIR'.",
    "matrix here": "Got unexpected extra argument (here)",
    "fetch": "Missing argument 'VERSION'.",
    "revert --vllm 0.20.2": "No such option '--vllm'.",
}


@pytest.mark.parametrize("typed", HINTS)
def test_a_wrong_command_line_is_answered_with_the_right_one(vpatch: Program, typed: str) -> None:
    ran = vpatch(*typed.split())

    assert (ran.code, ran.out, ran.err.splitlines()[-1].removeprefix("Error: ")) == (2, "", HINTS[typed])


def test_each_row_of_the_table_is_tested() -> None:
    said = [f"{typed.removeprefix('help ').split()[0]} {typed.split()[-1]}: {says}" for typed, says in HINTS.items()]
    ways = {pattern.partition(": ")[2].lstrip(".* ") for pattern, _ in WAYS}

    assert not any(re.search(r"\{[^}]*\b[A-Z]+\b", way) for _, way in WAYS), "a word to replace"
    assert [way for way in ways if not any(re.search(way, one) for one in said)] == []


def test_commands_to_copy_name_the_program_as_it_was_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not on PATH, or another of that name is: then by the path that the user typed."""
    for folder in ("mine", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "vpatch").write_text("#!/bin/sh\n")
        (tmp_path / folder / "vpatch").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    shown = {}
    for called in ("mine/vpatch", str(tmp_path / "mine/vpatch"), "vpatch", "/x/vpatch/__main__.py", "/x/pytest"):
        for folder in ("mine", "link", "other", "none"):
            monkeypatch.setattr(sys, "argv", [called])
            monkeypatch.setenv("PATH", str(tmp_path / folder))
            shown[called, folder] = shell("vpatch", "status")

    own = {"mine", "link"}
    for (called, folder), text in shown.items():
        typed = called if called.endswith(f"mine{os.sep}vpatch") and folder not in own else "vpatch"
        assert text == f"`{typed} status`", (called, folder)


def test_with_quiet_a_failure_still_has_a_reason(vpatch: Program, slim: Trees) -> None:
    tree = slim("0.20.2")

    ran = vpatch("apply", "--check", "-q", tree, *ONLY)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert ran.err.startswith("Would apply ")
    assert vpatch("status", "-q", tree, *ONLY).err == ""


def test_without_a_vllm_it_says_what_works(vpatch: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    fetch, tool = "`vpatch fetch 0.33.0 vllm-0.33.0`", "`install it`"
    begins = "No vLLM yet? Planning needs none: `vpatch plan --help`. To try vpatch on the sources of a release: "
    for found, says in ((True, f"{begins}{fetch}."), (None, f"{begins}{fetch}, after {tool}.")):
        monkeypatch.setattr("vpatch.installation.find_spec", lambda _, found=found: found)
        monkeypatch.setattr("vpatch.installation.how_to_add", lambda _: tool)
        ran = vpatch("status")
        assert (ran.code, ran.err.splitlines()[-1]) == (1, says)
        assert vpatch("status", tmp_path).err.count("\n") == 1
