"""Patch files that were changed since they were applied: mistakes in them, edits beside them, other overlays."""

from __future__ import annotations

from pathlib import Path

import pytest
from vpatch.tree.write_plan import SitePackages

from tests.cli.conftest import rewrite
from tests.conftest import Program, unchanged
from tests.tree.test_upgrade import ONE, make

PATCH = """\
Format: 1
Subject: What.
Base: 1

--- vllm/one.py
@@
 x = 1
+y = x
"""
CHANGED = "another version of it is applied; `vpatch apply` upgrades it"
MISTAKES = {
    "a typo": (("y = x", "y = z"), f"drifted: {ONE}: `y = z` reads `z`, which nothing binds there"),
    "context that is not there": ((" x = 1", " x = 3"), f"drifted: {ONE}: "),
    "none": (("y = x", "y = x + 1"), f"outdated: mine: {CHANGED}"),
}


@pytest.fixture
def store(public: Path) -> SitePackages:
    """With the modules by which a folder is known for vLLM's."""
    made = make(public / "site-packages")
    for name in ("config", "v1"):
        (made.tree.root / f"vllm/{name}").mkdir()
        (made.tree.root / f"vllm/{name}/__init__.py").touch()
    return made


@pytest.mark.parametrize(("change", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_patch_file_that_was_changed(
    store: SitePackages,
    vpatch: Program,
    tmp_path: Path,
    change: tuple[str, str],
    says: str,
) -> None:
    """A mistake in it is named, as on a vLLM to which it was never applied."""
    root, patch = store.tree.root, tmp_path / "mine.vpatch"
    words = ("--patches", patch, "--overlay", "mine")
    patch.write_text(PATCH)
    pristine = make(tmp_path / "pristine").tree.root
    assert vpatch("apply", root, *words).code == 0
    patch.write_text(PATCH.replace(*change))
    with unchanged(root):
        found = {command: vpatch(command, root, *words) for command in ("status", "verify")}
        found["dry"] = vpatch("apply", "-n", root, *words)
        if says.startswith("drifted"):
            found["written"] = vpatch("apply", root, *words)
            found["pristine"] = vpatch("status", pristine, *words)
    for ran in found.values():
        assert says in ran.err or ran.code == 0, ran.err
        assert "if you edited it" not in ran.err
    assert [command for command, ran in found.items() if ran.code == 0] == ([] if "written" in found else ["dry"])


def test_only_what_a_user_edited_is_an_edit(store: SitePackages, vpatch: Program, tmp_path: Path) -> None:
    """Beside it, a line that another version of a patch file has made is none."""
    root, patch = store.tree.root, tmp_path / "mine.vpatch"
    words = ("--patches", patch, "--overlay", "mine")
    patch.write_text(PATCH)
    assert vpatch("apply", root, *words).code == 0
    patch.write_text(PATCH.replace("y = x", "y = x + 1"))
    rewrite(root / ONE, (root / ONE).read_bytes() + b"edit = 1\n")
    last = len((root / ONE).read_text().splitlines())

    for command in ("status", "verify", "apply"):
        ran = vpatch(command, root, *words)
        assert (ran.code, f"line {last}: `edit = 1` was inserted" in ran.err) == (1, True), ran.err
        assert "y = x" not in ran.err


def test_another_overlay_is_reverted_beside_a_patch_file_that_was_changed(
    store: SitePackages, vpatch: Program, tmp_path: Path
) -> None:
    """What the changed one had made stays as it was made."""
    root, patches = store.tree.root, tmp_path / "patches"
    patches.mkdir()
    (patches / "mine.vpatch").write_text(PATCH)
    assert vpatch("apply", root, "--patches", patches, "--overlay", "mine").code == 0
    alone = (root / ONE).read_bytes()
    (patches / "other.vpatch").write_text(PATCH.replace(" x = 1\n+y = x", "+other = 2\n x = 1"))
    assert vpatch("apply", root, "--patches", patches, "--overlay", "other").code == 0
    (patches / "mine.vpatch").write_text(PATCH.replace("y = x", "y = x + 1"))
    with unchanged(root):
        assert vpatch("revert", root, "-n", "--patches", patches, "--overlay", "other").code == 0
        assert vpatch("revert", root, "-n", "--force", "--patches", patches).out.count("@@") == 0, "nothing was edited"
        assert vpatch("diff", root, "--edits", "--patches", patches).out == ""
    assert vpatch("revert", root, "--patches", patches, "--overlay", "other").code == 0
    assert (root / ONE).read_bytes() == alone
