"""`show`: what each part of an overlay changes, in a tree, in a release of the index, and where there is no vLLM."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import Program, Trees, unchanged
from tests.hybrid import ARG_UTILS, COMPANION, HYBRID, INFO
from tests.loopback import IndexServer, index, settings
from tests.terminals import written
from tests.wheels import wheel_of

__all__ = ["index", "settings"]

HEAD = "ct-fp8-lm-head"
"""An overlay of which several parts change one file, and parts have other states."""
ADDS = f"  adds {COMPANION}, 87 lines"


def parts_of(out: str) -> dict[str, list[str]]:
    """Return the lines on each part, the first with its state."""
    text = out.partition("\nChanges in vLLM 0.20.2\n\n  ")[2]
    return {block.split()[0]: block.splitlines() for block in text.split("\n\n  ")}


@pytest.mark.deep
def test_each_part_stands_alone_and_is_the_same_once_applied(vpatch: Program, tree: Path) -> None:
    with unchanged(tree):
        pending = vpatch("show", HEAD, tree)
    assert vpatch("apply", tree).code == 0, "other overlays, too"
    applied = vpatch("show", HEAD, tree)
    json = vpatch("show", HEAD, tree, "--json").json

    assert (pending.code, applied.code) == (0, 0)
    assert (
        "\nA log has\n  ValueError: There is no module or parameter named 'lm_head.input_scale' in ...\n" in pending.out
    )
    before, after = parts_of(pending.out), parts_of(applied.out)
    assert {name: lines[1:] for name, lines in before.items()} == {name: lines[1:] for name, lines in after.items()}
    heads = [line for lines in before.values() for line in lines if line.startswith("+++ ")]
    assert len(heads) > len({*heads})
    assert {lines[0].split()[1] for lines in before.values()} == {"pending", "merged", "not_applicable"}
    assert {lines[0].split()[1] for lines in after.values()} == {"applied", "merged", "not_applicable"}
    for name, (first, *lines) in before.items():
        marked = [line for line in lines if f"# vpatch: {HEAD}" in line]
        assert bool(marked) == (" pending " in first), name
        assert all(line.startswith("+") for line in marked), "no part stands in the context of another"
    assert pending.err.endswith(f"Apply it with `vpatch apply --overlay {HEAD} {tree}`.\n")
    assert applied.err.endswith(f"It is applied. Undo it with `vpatch revert --overlay {HEAD} {tree}`.\n")

    assert (json["tree"], json["vllm"]) == (str(tree), "0.20.2")
    for part in json["overlays"][0]["parts"]:
        first, *lines = after[part["name"]]
        assert first.split(maxsplit=2)[1:] == [part["state"], part["because"]]
        diffs = [line for one in part["changes"] if "/_vpatch/" not in one["file"] for line in one["diff"].splitlines()]
        assert [line for line in lines if not line.startswith("  adds ")] == diffs


def test_modules_that_are_added_are_named_and_printed_on_demand(vpatch: Program, slim: Trees) -> None:
    brief, full = (vpatch("show", HYBRID, slim("0.20.2"), *more).out for more in ((), ("-v",)))

    assert brief.count(ADDS) == full.count(ADDS) == 2, "both parts need it"
    assert f"+++ b/{COMPANION}" not in brief
    assert full.count(f"{ADDS}\n--- /dev/null\n+++ b/{COMPANION}\n@@ -0,0 +1,87 @@\n") == 1
    assert "".join(re.split(r"--- /dev/null\n(?:\+.*\n|@@.*\n)+", full)) == brief
    assert (
        f"--- a/{ARG_UTILS}\n+++ b/{ARG_UTILS}\n@@ -1673,18 +1673,13 @@ def EngineArgs.create_engine_config\n" in brief
    )


def test_what_vpatch_cannot_compare_is_said(vpatch: Program, tree: Path) -> None:
    vpatch("apply", tree, "--overlay", HYBRID)
    shutil.rmtree(tree / INFO / "vpatch")
    ran = vpatch("show", HYBRID, tree)

    assert ran.code == 0
    assert "@@" not in ran.out
    assert "note: vpatch has no original of the code that boundary-layers, page-size changed" in ran.err


@pytest.mark.deep
def test_a_release_of_the_index(vpatch: Program, index: IndexServer, slim: Trees) -> None:
    """It has what the tree of the release has; a second run reads the cache, and the index may be gone."""
    index.publish("vllm-0.20.2-py3-none-any.whl", wheel_of(slim("0.20.2")))
    first = vpatch("show", HYBRID, "--vllm", "0.20.2")
    json = vpatch("show", HYBRID, "--vllm", "0.20.2", "--json").json
    unknown = vpatch("show", HYBRID, "--vllm", "0.20.9")
    index.stop()
    again = vpatch("show", HYBRID, "--vllm", "0.20.2")

    sources = f"`vpatch fetch 0.20.2 vllm-0.20.2`, then `vpatch apply --overlay {HYBRID} vllm-0.20.2`"
    assert (first.code, first.err) == (0, f"It fits vLLM 0.20.2. To apply it to its sources: {sources}.\n")
    assert first.out == again.out == vpatch("show", HYBRID, slim("0.20.2")).out
    assert "note: offline: " in again.err
    assert (json["tree"], json["vllm"]) == (None, "0.20.2")
    assert (unknown.code, unknown.out) == (2, "")
    assert unknown.err.startswith("no such release: vllm 0.20.9: ")


def test_without_a_vllm(vpatch: Program) -> None:
    ran = vpatch("show", HYBRID)
    json = vpatch("show", HYBRID, "--json").json

    assert ran.code == 0
    assert f"\nChanges\n  boundary-layers, from vLLM 0.20: {COMPANION}, " in ran.out
    sizes = vpatch("show", "mtp-capture-sizes").out
    assert sizes.endswith(
        "  sizes, from vLLM 0.18, in other forms from 0.20 and 0.32: vllm/v1/worker/gpu_model_runner.py\n"
    )
    assert f"No vLLM is here: `vpatch show {HYBRID} --vllm 0.20.2` shows the changes in a release.\n" in ran.err
    assert (json["tree"], json["vllm"]) == (None, None)
    (shown,) = json["overlays"]
    assert {(one["state"], one["because"], *one["changes"]) for one in shown["parts"]} == {(None, None)}


@pytest.mark.parametrize(
    ("release", "state", "outcome"),
    [
        ("0.33.0", "merged", "It has nothing to change in this vLLM."),
        ("broken", "drifted", "It does not fit this vLLM."),
    ],
)
def test_a_part_that_changes_nothing_has_its_reason(
    vpatch: Program, slim: Trees, tree: Path, release: str, state: str, outcome: str
) -> None:
    file = tree / ARG_UTILS
    text = file.read_text().replace("get_boundary_skip_layers(num_layers)", "get_boundary_skip_layers(num_layers, 3)")
    file.unlink()
    file.write_text(text)
    ran = vpatch("show", HYBRID, tree if release == "broken" else slim(release))

    (line,) = (line for line in ran.out.splitlines() if line.startswith("  boundary-layers "))
    assert line.split(maxsplit=2)[1] == state
    assert len(line.split()) > 5
    assert ran.code == 0
    assert ran.err.endswith(f"{outcome}\n")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("TREE", "--vllm", "0.20.2"), 2, "TREE, --python and --vllm each name a vLLM: leave out all but one"),
        (("TREE", "--python", "python3"), 2, "TREE, --python and --vllm each name a vLLM: leave out all but one"),
        (("--vllm", "new"), 2, "not a version: new: a release reads like 0.20.2\n"),
        (("nowhere",), 2, "no vllm: nowhere: no such folder\n"),
        (("turboquant-mtp",), 2, "no vllm: turboquant-mtp: no such folder\n"),  # and no option that `show` lacks
        (("EMPTY",), 1, "no vllm: EMPTY: not a site-packages, "),
    ],
)
def test_bad_input(
    vpatch: Program, index: IndexServer, tree: Path, tmp_path: Path, words: tuple[str, ...], code: int, told: str
) -> None:
    names = {"TREE": str(tree), "EMPTY": str(tmp_path / "empty")}
    (tmp_path / "empty").mkdir()
    ran = vpatch("show", HYBRID, *(names.get(word, word) for word in words))

    assert (ran.code, ran.out) == (code, "")
    assert told.replace("EMPTY", names["EMPTY"]) in ran.err
    assert ran.err.count("\n") == 1 or ran.err.startswith("Usage: ")


def test_bullets_stand_alone_on_a_terminal(slim: Trees) -> None:
    lines = written("show", "hybrid-mtp-counts", slim("0.20.2")).splitlines()

    assert [line for line in lines if "- With" in line and not line.startswith("  - With")] == []
    assert sum(line.startswith(("  - With prefix", "  - Without prefix")) for line in lines) == 2


def test_a_diff_has_colors_on_a_terminal(slim: Trees) -> None:
    for command in ("show", "diff"):
        seen = written(command, *((HYBRID,) if command == "show" else ("--overlay", HYBRID)), slim("0.20.2"))

        lines = seen.splitlines()
        at = lines.index(f"--- a/{ARG_UTILS}")
        assert lines[at + 1] == f"+++ b/{ARG_UTILS}"
        assert lines[at + 2].startswith("\x1b[36m@@ -1673,18 +1673,13 @@")
        assert "\x1b[31m-            if model_config.is_hybrid:\x1b[0m" in lines
        assert "\x1b[32m+            # vpatch: turboquant-hybrid\x1b[0m" in lines
