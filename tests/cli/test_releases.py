"""On every release: apply all default overlays, compile, apply again, verify, revert; and revert one by one."""

from __future__ import annotations

import random

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.tree.locate import locate

from tests.conftest import Program, Trees, contents_of
from tests.engines import together
from tests.releases import FACTS, FIRST, RELEASES, shown, tiered, todo
from tests.tiers import sampled

DEFAULT = tuple(item.id for item in select(discover()) if item.id in FACTS)


@pytest.mark.parametrize("release", tiered([*sampled(RELEASES[:-1], 5), RELEASES[-1]], ("0.33.0",)))
def test_all_default_overlays(vpatch: Program, linked: Trees, release: str) -> None:
    tree = linked(release)
    before = contents_of(tree)

    ran = vpatch("apply", tree, "--json")
    assert (ran.code, ran.err) == (0, "")
    states = {item["id"]: item["state"] for item in ran.json["overlays"]}
    wanted = {overlay: shown(overlay, release) for overlay in DEFAULT}
    assert {overlay: states[overlay] for overlay in DEFAULT} == {
        overlay: "applied" if state == "pending" else state for overlay, state in wanted.items()
    }
    changed = [file for file in ran.json["changed"] if file.endswith(".py")]
    assert bool(changed) == bool(todo(release))
    for file in changed:
        compile((tree / file).read_bytes(), file, "exec", dont_inherit=True)

    assert vpatch("apply", tree, "--json").json["changed"] == []
    if changed:
        assert vpatch("verify", tree).code == 0
        assert vpatch("revert", tree).code == 0
    assert contents_of(tree) == before


@pytest.mark.deep
@pytest.mark.parametrize("release", [release for release in FIRST if len(todo(release)) > 1])
def test_reverting_one_by_one(vpatch: Program, linked: Trees, slim: Trees, release: str) -> None:
    """Reverting the overlays one by one leaves, each time, what applying only the rest gives."""
    tree = linked(release)
    assert vpatch("apply", tree).code == 0
    left = list(todo(release))
    random.Random(release).shuffle(left)  # noqa: S311 - for a test

    while len(left) > 1:
        assert vpatch("revert", tree, "--overlay", left.pop()).code == 0
        expected = together(locate(slim(release)).read, left)
        assert {file: (tree / file).read_bytes() for file in expected} == expected
    assert vpatch("revert", tree).code == 0
