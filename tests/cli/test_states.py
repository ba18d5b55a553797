"""Each overlay's state on each release; and a patched tree stays `applied`, however it is stored."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import Program, Trees
from tests.hybrid import HYBRID, ONLY
from tests.releases import pending
from tests.tiers import deep
from tests.tree.conftest import git


def states(vpatch: Program, tree: Path, *only: str) -> dict[str, str]:
    ran = vpatch("status", tree, *only, "--json")
    assert (ran.code, ran.err) == (0, "")
    return {item["id"]: item["state"] for item in ran.json["overlays"]}


@pytest.fixture(params=["0.20.2", *(deep(one) for one in pending(HYBRID) if one != "0.20.2")])
def applied(request: pytest.FixtureRequest, vpatch: Program, linked: Trees) -> Path:
    tree = linked(request.param)
    assert vpatch("apply", tree, *ONLY).code == 0
    return tree


@pytest.mark.parametrize("committed", [False, True])
def test_patched_without_dist_info(vpatch: Program, applied: Path, *, committed: bool) -> None:
    (info,) = applied.glob("*.dist-info")
    shutil.rmtree(info)
    if committed:
        for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "patched"]):
            git(applied, *command)

    assert states(vpatch, applied, *ONLY)[HYBRID] == "applied"
    ran = vpatch("apply", applied, *ONLY, "--json")
    assert (ran.code, ran.json["changed"]) == (0, [])
    for only in ((), ONLY):
        ran = vpatch("revert", "-q", applied, *only)

        assert (ran.code, ran.out) == (1, "")
        told = ran.err.splitlines()
        assert len(told) == 6
        assert all(line.startswith("cannot revert: vllm/") for line in told)
        assert all(line.endswith("reinstall vLLM, or revert the commit that has it") for line in told)
        assert states(vpatch, applied, *ONLY)[HYBRID] == "applied"
