"""Which overlays a command means: `--overlay`, `--with`, or the default ones and whatever is applied."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from vpatch import api
from vpatch.core.catalogue import discover, select

from tests.conftest import Program, unchanged
from tests.hybrid import HYBRID, TILES

DEFAULT = [item.id for item in select(discover())]


def shown(vpatch: Program, command: str, tree: Path, *arguments: str) -> dict[str, str]:
    """Return the overlays that a command reports, with their states."""
    return {one["id"]: one["state"] for one in vpatch(command, tree, *arguments, "--json").json["overlays"]}


@pytest.mark.deep
def test_an_opt_in_overlay_is_there_once_it_is_applied(vpatch: Program, tree: Path) -> None:
    """Before, `status` left it out, `verify` listed it unasked, and `apply` did not know of it."""
    assert "receipt" not in shown(vpatch, "verify", tree)
    assert vpatch("apply", tree, "--overlay", "receipt").code == 0

    for command in ("status", "diff", "verify"):
        assert shown(vpatch, command, tree)["receipt"] == "applied", command
    assert shown(vpatch, "apply", tree)["receipt"] == "applied"
    assert vpatch("verify", tree).code == 0

    assert vpatch("revert", tree).code == 0
    assert "receipt" not in shown(vpatch, "status", tree)


@pytest.mark.deep
def test_diff_and_apply_agree_on_a_half_applied_one(vpatch: Program, tree: Path) -> None:
    """What `diff` shows is what `apply` does, also for an opt-in overlay that lost a file."""
    vpatch("apply", tree, "--overlay", TILES)
    (tree / "vllm/_vpatch/turboquant_tiles.py").unlink()

    files = vpatch("diff", tree, "--overlay", TILES, "--json").json["files"]
    assert "vllm/_vpatch/turboquant_tiles.py" in files
    assert set(files) < set(vpatch("diff", tree, "--json").json["files"])
    assert shown(vpatch, "apply", tree)[TILES] == "applied"


def test_with_and_overlay_are_two_ways(vpatch: Program, tree: Path) -> None:
    with unchanged(tree):
        ran = vpatch("apply", tree, "--overlay", HYBRID, "--with", TILES)

    assert ran.code == 2
    assert f"--overlay selects exactly these overlays: leave out --with, or give --overlay {TILES}" in ran.err


def test_commands_can_be_joined(vpatch: Program, tree: Path) -> None:
    """`--with` of an overlay that `--overlay` names, too, as where two printed commands are made one."""
    ran = vpatch("apply", tree, "--overlay", HYBRID, "--overlay", TILES, "--with", TILES, "--json")

    assert ran.code == 0, ran.err
    assert {one["id"] for one in ran.json["overlays"]} == {HYBRID, TILES}


@pytest.mark.parametrize(
    ("typed", "again"),
    [
        (f"apply --overlay {HYBRID},{TILES} -n", f"apply --overlay {HYBRID} --overlay {TILES} -n"),
        (f"status --with={HYBRID},{TILES} .", f"status --with {HYBRID} --with {TILES} ."),
        (f"matrix --overlay {HYBRID}, --overlay {TILES}", f"matrix --overlay {HYBRID} --overlay {TILES}"),
        (f"build --base x --with '{HYBRID}, {TILES}'", f"build --base x --with {HYBRID} --with {TILES}"),
    ],
)
def test_a_list_of_overlays(vpatch: Program, typed: str, again: str) -> None:
    ran = vpatch(*shlex.split(typed))

    assert ran.code == 2
    assert ran.err.endswith(f" takes one overlay: repeat it, as in `vpatch {again}`\n")


@pytest.mark.parametrize("ids", [HYBRID, [HYBRID], iter([HYBRID])])
def test_one_id_may_be_a_string(tree: Path, ids: Sequence[str]) -> None:
    assert [verdict.id for verdict in api.status(tree, ids).overlays] == [HYBRID]


@pytest.mark.deep
def test_also_from_python(tree: Path) -> None:
    done = api.apply(tree, also="receipt")

    assert "receipt" in done.affected
    assert set(done.affected) <= {verdict.id for verdict in done.overlays}
    assert set(done.added) < set(done.changed)
    undone = api.revert(tree)
    assert (undone.affected, undone.removed) == (done.affected, done.added)
