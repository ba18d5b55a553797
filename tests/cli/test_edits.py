"""A user's own edits in files that vpatch changed: they are never lost, and named where they matter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import rewrite, ways_out
from tests.conftest import Program, Trees, contents_of, unchanged, untouched
from tests.hybrid import ARG_UTILS, ATTENTION, CONFIG, INFO, ONLY, TILES
from tests.tiers import deep

WORKSPACE = "turboquant-workspace"
MINE = b"mine = 1\n"
MODEL = "vllm/model_executor/models/qwen3_next.py"  # of another overlay than those of TurboQuant


def edit(tree: Path, file: str) -> None:
    rewrite(tree / file, (tree / file).read_bytes() + MINE)


def undo(tree: Path, file: str) -> None:
    data = (tree / file).read_bytes()
    assert data.endswith(MINE)
    rewrite(tree / file, data.removesuffix(MINE))


def notes(vpatch: Program, *arguments: str | Path) -> str:
    """Return what a command that succeeds remarks."""
    ran = vpatch(*arguments, "--json")
    assert ran.code == 0, ran.out
    return "\n".join(ran.json["notes"])


def stays(tree: Path, file: str) -> str:
    line = len((tree / file).read_bytes().splitlines())
    return f"{file}: edited after vpatch, line {line}; {ways_out(tree)}"


@pytest.mark.deep
@pytest.mark.parametrize(
    ("more", "changed"),
    [
        pytest.param(ONLY, [], id="the same overlays"),
        # No run ever wrote the file with this overlay and without the edit.
        (("--with", TILES), [f"{INFO}/RECORD", f"vllm/_vpatch/{TILES.replace('-', '_')}.py", ATTENTION]),
    ],
)
def test_an_edit_that_is_undone_is_none(
    vpatch: Program, tree: Path, slim: Trees, more: Sequence[str], changed: Sequence[str]
) -> None:
    vpatch("apply", tree, *(ONLY if more == ONLY else ()))
    edit(tree, ATTENTION)

    ran = vpatch("apply", tree, *more, "--json")

    assert (ran.code, ran.json["changed"]) == (0, changed)
    assert stays(tree, ATTENTION) in ran.json["notes"]
    with untouched(tree):
        assert stays(tree, ATTENTION) in notes(vpatch, "apply", tree, *more)
    assert vpatch("verify", tree).code == 1
    with unchanged(tree):
        assert vpatch("revert", "-q", tree).err.startswith(f"edited after vpatch: {ATTENTION}: ")

    undo(tree, ATTENTION)
    assert vpatch("verify", tree).code == (more != ONLY)  # then RECORD has the edited file, which `apply` wrote
    assert ATTENTION not in notes(vpatch, "apply", tree, *more)
    assert vpatch("verify", tree).code == 0
    assert vpatch("revert", tree).code == 0
    assert contents_of(tree) == contents_of(slim("0.20.2"))


@pytest.mark.deep
@pytest.mark.parametrize("file", [CONFIG, deep(MODEL)])
def test_one_overlay_is_reverted_beside_an_edit(vpatch: Program, tree: Path, slim: Trees, file: str) -> None:
    """The file is none of the overlay's: it stays as it is, with the marks of the others."""
    vpatch("apply", tree)
    edit(tree, file)
    edited = (tree / file).read_bytes()

    assert stays(tree, file) in notes(vpatch, "revert", tree, "--overlay", WORKSPACE)

    states = {one["id"]: one["state"] for one in vpatch("status", tree, "--json").json["overlays"]}
    assert (states.pop(WORKSPACE), "pending" in states.values()) == ("pending", False)
    assert (tree / file).read_bytes() == edited
    assert vpatch("verify", tree).code == 1
    undo(tree, file)
    assert vpatch("revert", tree).code == 0
    assert contents_of(tree) == contents_of(slim("0.20.2"))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("release", "overlays"),
    [
        ("0.20.2", ["turboquant-hybrid", "turboquant-skip-list"]),
        ("0.26.0", ["turboquant-skip-list"]),  # turboquant-hybrid is merged there, and looks into the module
    ],
)
def test_a_module_that_does_not_compile_is_one_edit(
    vpatch: Program, linked: Trees, release: str, overlays: Sequence[str]
) -> None:
    """Not one of each overlay in it, and no other line is to blame; `capture` could not read it."""
    tree = linked(release)
    vpatch("apply", tree, *(word for name in overlays for word in ("--overlay", name)))
    rewrite(tree / ARG_UTILS, b"# mine\n" + (tree / ARG_UTILS).read_bytes() + b"def (\n")
    line = len((tree / ARG_UTILS).read_bytes().splitlines())
    why = f"it does not compile: invalid syntax (arg_utils.py, line {line}); {ways_out(tree, keep=False)}"

    with untouched(tree):
        for command in ("status", "apply", "verify", "doctor"):
            ran = vpatch(command, tree, "--json")
            found = ran.json["findings" if command == "doctor" else "problems"]
            problems = [one for one in found if one.get("level", "problem") == "problem"]
            assert (ran.code, len(problems)) == (1, 1), problems
        said = vpatch("status", tree).err
    assert said.count(f"edited after vpatch: {ARG_UTILS}: {why}\n") == 1


def test_a_comment_is_not_to_blame(vpatch: Program, tree: Path) -> None:
    vpatch("apply", tree, *ONLY)
    text = (tree / CONFIG).read_bytes().replace(b"        return boundary_skip_layers(", b"        return list(")
    rewrite(tree / CONFIG, b"# mine\n" + text)

    found = r"line \d+: expected `return boundary_skip_layers\(.*`, found `return list\(.*`; "
    assert re.search(f"edited after vpatch: {CONFIG}: {found}", vpatch("status", tree, *ONLY).err)
