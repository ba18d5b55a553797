"""The Python functions behind the commands: results and exceptions. The tests of each command cover the rest."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import vpatch

from tests.conftest import Trees, contents_of, unchanged
from tests.hybrid import ARG_UTILS

SKIP, HYBRID, AUTO = "turboquant-skip-list", "turboquant-hybrid", "turboquant-auto-dtype"


def test_apply_and_revert_restore_the_tree(linked: Trees) -> None:
    tree = linked("0.20.2")
    before = contents_of(tree)

    found = vpatch.status(tree, [SKIP])
    assert (found.tree, found.vllm, found.problems) == (tree, "0.20.2", ())
    assert [(one.id, one.state) for one in found.overlays] == [(SKIP, "pending")]

    wanted = vpatch.diff(str(tree), [SKIP])
    old, new = wanted.files[ARG_UTILS]
    assert old == (tree / ARG_UTILS).read_bytes()
    assert f"--- a/{ARG_UTILS}" in wanted.lines
    assert contents_of(tree) == before

    done = vpatch.apply(tree, [SKIP])
    assert [one.state for one in done.overlays] == ["applied"]
    assert ARG_UTILS in done.changed
    assert (tree / ARG_UTILS).read_bytes() == new
    assert vpatch.apply(tree, [SKIP]).changed == ()

    assert vpatch.verify(tree, [SKIP]).problems == ()
    assert vpatch.verify(tree).overlays
    back = vpatch.revert(tree, [SKIP])
    assert set(back.changed) == set(done.changed)
    assert contents_of(tree) == before
    assert vpatch.revert(tree).changed == ()


def test_an_empty_list_chooses_no_overlay(linked: Trees) -> None:
    tree = linked("0.20.2")
    vpatch.apply(tree, [SKIP])

    with unchanged(tree):
        assert vpatch.status(tree, []).overlays == vpatch.diff(tree, []).overlays == ()
        assert vpatch.apply(tree, []).changed == vpatch.revert(tree, []).changed == ()
        assert vpatch.verify(tree, []).overlays == ()


def test_results_are_frozen(slim: Trees) -> None:
    found = vpatch.status(slim("0.20.2"), [SKIP])

    with pytest.raises(dataclasses.FrozenInstanceError):
        found.vllm = "other"  # type: ignore[misc]


def test_the_default_tree_is_the_vllm_of_this_interpreter(slim: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(slim("0.20.2")))
    monkeypatch.setenv("VIRTUAL_ENV", "/nowhere")

    assert vpatch.status(overlays=[SKIP]).tree == slim("0.20.2").resolve()
    assert vpatch.status(Path(sys.executable), [SKIP]).vllm == "0.20.2"


def test_one_drifted_overlay_prevents_every_write(linked: Trees) -> None:
    tree = linked("0.20.2")
    text = (tree / ARG_UTILS).read_text()
    (tree / ARG_UTILS).unlink()
    (tree / ARG_UTILS).write_text(text.replace("key=lambda x: int(x)", "key=float"))
    before = contents_of(tree)

    for verb in (vpatch.apply, vpatch.diff):
        with pytest.raises(vpatch.Refused, match=r"drifted: vllm/engine/arg_utils\.py") as refused:
            verb(tree, [SKIP, HYBRID])
        states = {one.id: one.state for one in refused.value.result.overlays}
        assert states == {SKIP: "drifted", HYBRID: "pending"}
        assert refused.value.problems == refused.value.result.problems
    assert contents_of(tree) == before
    assert vpatch.status(tree, [SKIP]).problems


@pytest.mark.parametrize(
    ("tree", "overlays", "says"),
    [("nowhere", [SKIP], "no vllm: nowhere"), (None, ["nonsense"], "no such overlay: nonsense")],
)
def test_unknown_trees_and_overlays_fail(slim: Trees, tree: str | None, overlays: list[str], says: str) -> None:
    for verb in (vpatch.status, vpatch.diff, vpatch.apply, vpatch.revert, vpatch.verify):
        with pytest.raises(vpatch.Failure, match=says):
            verb(slim("0.20.2") if tree is None else tree, overlays)
