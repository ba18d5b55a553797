"""What vpatch applied to a vLLM is its own; what was done before, between and after is captured."""

from __future__ import annotations

from pathlib import Path

import pytest
from vpatch.manifest import sha256

from tests.conftest import Program
from tests.hybrid import ARG_UTILS, ATTENTION
from tests.porting.installed import Capture, edit, the_file

TWO = ("--overlay", "turboquant-hybrid", "--overlay", "turboquant-workspace")


@pytest.mark.usefixtures("offline")
def test_what_vpatch_applied_is_its_own(vpatch: Program, capture: Capture, tree: Path, tmp_path: Path) -> None:
    """An edit on top of it is captured alone, with the originals that vpatch keeps."""
    assert vpatch("apply", *TWO, tree).code == 0

    assert capture(tree, pristine=False).err.endswith("Nothing to capture: every module is as it was installed.\n")
    assert capture(tree).code == 0

    edit(tree, ATTENTION, lambda text: text.replace("import functools\n", "import functools\n\n_LIMIT = 4\n", 1))
    ran = capture(tree, pristine=False)

    assert ran.code == 0, ran.err
    assert ran.out == f"  {ATTENTION}  changed\n{tmp_path}/patches/captured.vpatch\n"
    assert f"note: {ATTENTION}: changed on top of turboquant-hybrid, turboquant-workspace\n" in ran.err
    (change,) = the_file(tmp_path).changes
    assert [line for line in change.text.splitlines() if line[0] in "+-"] == ["+_LIMIT = 4"]
    assert capture(tree, "--force").code == 0
    assert the_file(tmp_path).changes == (change,)


def test_an_edit_before_vpatch(vpatch: Program, capture: Capture, tree: Path, tmp_path: Path) -> None:
    """It is among the originals that vpatch keeps."""
    edit(tree, ARG_UTILS, lambda text: f"{text}\n\n_LIMIT = 4\n")
    assert vpatch("apply", *TWO, tree).code == 0

    assert capture(tree).code == 0
    (change,) = the_file(tmp_path).changes
    assert [line for line in change.text.splitlines() if line[0] in "+-"] == ["+_LIMIT = 4"]


def test_an_edit_between_two_overlays(vpatch: Program, capture: Capture, tree: Path, tmp_path: Path) -> None:
    """No run wrote what both make of the original."""
    assert vpatch("apply", *TWO[:2], tree).code == 0
    edit(tree, ATTENTION, lambda text: text.replace("import functools\n", "import functools\n\n_LIMIT = 4\n", 1))
    assert vpatch("apply", *TWO, tree).code == 0

    assert capture(tree).code == 0
    (change,) = the_file(tmp_path).changes
    assert [line for line in change.text.splitlines() if line[0] in "+-"] == ["+_LIMIT = 4"]


def test_an_edit_of_what_an_overlay_inserted_by_another_version(
    vpatch: Program, capture: Capture, tree: Path, tmp_path: Path
) -> None:
    """What the overlay made of the module cannot be told."""
    assert vpatch("apply", *TWO, tree).code == 0
    (note,) = tree.glob("*.dist-info/vpatch/provenance.json")
    note.write_text(note.read_text().replace(sha256((tree / ATTENTION).read_bytes()), "0" * 64))
    edit(tree, ATTENTION, lambda text: text.replace("  # vpatch: turboquant-workspace", ""))

    ran = capture(tree)

    assert ran.code == 1
    assert ran.err.splitlines()[1:] == [
        f"cannot capture: {ATTENTION}: edited after vpatch, and other overlays are installed than vpatch "
        "applied; install the vpatch, and the packages of overlays, that applied them",
        "Nothing was written.",
    ]
