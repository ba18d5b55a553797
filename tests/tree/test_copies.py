"""What is kept of a patch file that was applied: another machine judges and reverts by it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import vpatch as library
from vpatch.core.catalogue import Selection
from vpatch.guest.vpatch_receipt import written_to
from vpatch.manifest import sha256
from vpatch.run.launch import planned
from vpatch.tree.locate import locate

from tests.conftest import Program, Trees, unchanged, untouched
from tests.failures import problem_of
from tests.hybrid import INTERFACE
from tests.test_project import COPY, ID, MARKED, OTHER, PATCH
from tests.tree.conftest import NOBODY, another_user

OLD, NEW = '"i586",', '"geode",'


@pytest.fixture
def applied(linked: Trees, tmp_path: Path) -> Path:
    """A tree with two patches of a folder that is gone."""
    tree, folder = linked("0.20.2"), tmp_path / "patches"
    folder.mkdir()
    (folder / f"{ID}.vpatch").write_text(PATCH)
    (folder / "stripped.vpatch").write_text(OTHER)
    with library.patches(folder):
        assert library.apply(tree, [ID, "stripped"]).affected == (ID, "stripped")
    shutil.rmtree(folder)
    return tree


def pristine(tree: Path, slim: Trees) -> None:
    subprocess.run(["diff", "-r", tree, slim("0.20.2")], check=True)


def states(vpatch: Program, tree: Path, *words: str) -> dict[str, str]:
    found = vpatch("status", tree, "--json", *words).json
    assert found["not_installed"] == []
    return {one["id"]: one["state"] for one in found["overlays"]}


def test_it_is_kept_and_listed(applied: Path) -> None:
    info = applied / "vllm-0.20.2.dist-info"
    assert (applied / COPY).read_text() == PATCH
    assert COPY in (info / "RECORD").read_text()
    assert f'"sha256": "{sha256(PATCH.encode())}"' in (info / "vpatch/provenance.json").read_text()
    assert written_to(applied)["patches"] == {ID: sha256(PATCH.encode()), "stripped": sha256(OTHER.encode())}


@pytest.mark.deep
def test_without_the_folder(vpatch: Program, applied: Path, slim: Trees) -> None:
    with untouched(applied):
        assert states(vpatch, applied) | {ID: "applied", "stripped": "applied"} == states(vpatch, applied)
        assert vpatch("verify", applied).code == 0
        assert vpatch("verify", applied, "--overlay", ID).code == 0
        assert MARKED not in vpatch("diff", applied).out
        assert vpatch("diff", applied, "--overlay", ID).out == ""
        assert vpatch("doctor", applied).err.count("package is not installed") == 0
        unknown = vpatch("status", applied, "--overlay", "i58")
    assert (unknown.code, "no such overlay: i58: did you mean i586-machines" in unknown.err) == (2, True)

    ran = vpatch("revert", applied, "--overlay", ID)
    assert (ran.code, states(vpatch, applied)["stripped"]) == (0, "applied")
    assert [MARKED in (applied / INTERFACE).read_text(), (applied / COPY).exists()] == [False, False]
    assert vpatch("verify", applied).code == 0
    ran = vpatch("revert", applied)
    assert ran.err.splitlines()[-1].startswith("Reverted 1 overlay: 1 file restored, 0 removed.")
    pristine(applied, slim)


def test_a_run_counts_it(applied: Path) -> None:
    content = planned(locate(applied), Selection(()))
    assert (content.overlays, list(content.applied)) == ((ID, "stripped"), [INTERFACE])
    assert content.patches == written_to(applied)["patches"]
    assert content.digest == written_to(applied)["digest"]


def test_an_applied_tree_may_be_read_only(applied: Path, public: Path) -> None:
    tree = shutil.copytree(applied, public / "site-packages")
    with another_user(NOBODY):
        assert library.apply(tree, [ID]).changed == ()


CHANGES: dict[str, tuple[Callable[[str], str], str, str]] = {
    "another edit": (lambda text: text.replace(OLD, NEW), "drifted", "Upgraded 1 overlay"),
    "another head": (
        lambda text: text.replace("name i586", "word i586"),
        "applied",
        "Updated RECORD: 1 overlay is applied",
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("change", CHANGES)
def test_the_folder_has_other_bytes(vpatch: Program, applied: Path, tmp_path: Path, slim: Trees, change: str) -> None:
    """Those judge, and `apply` replaces what the others made."""
    make, state, outcome = CHANGES[change]
    (tmp_path / f"{ID}.vpatch").write_text(make(PATCH))
    words = ("--patches", str(tmp_path / f"{ID}.vpatch"), "--overlay", ID)

    found = vpatch("status", applied, "--json", *words).json
    assert [one["state"] for one in found["overlays"]] == [state]
    assert found["upgradable"] == ([ID] if state == "drifted" else [])
    ran = vpatch("apply", applied, *words)

    assert (ran.code, outcome in ran.err) == (0, True)
    assert (applied / COPY).read_text() == make(PATCH)
    assert (OLD if state == "applied" else NEW) in (applied / INTERFACE).read_text()
    assert vpatch("verify", applied).code == 0
    with untouched(applied):
        assert vpatch("apply", applied, *words).code == 0
    assert vpatch("revert", applied).code == 0
    pristine(applied, slim)


@pytest.mark.deep
@pytest.mark.parametrize("damage", [b"", b"Format: 9\n", b"\xff", PATCH.encode()[:-1]])
def test_a_damaged_copy(vpatch: Program, applied: Path, slim: Trees, damage: bytes) -> None:
    """It is one that nobody has; RECORD tells that it is another, and `revert` works."""
    (applied / COPY).unlink()
    (applied / COPY).write_bytes(damage)

    with unchanged(applied):
        assert [one["id"] for one in vpatch("status", applied, "--json").json["not_installed"]] == [ID]
        ran = vpatch("verify", applied)
        assert ran.code == 1
        assert f"RECORD is not true: {COPY}: " in ran.err
        assert f"{ID} is applied, and its package is not installed here" in ran.err
    assert vpatch("revert", applied).code == 0
    pristine(applied, slim)


def test_a_copy_of_nothing_applied_selects_nothing(applied: Path, slim: Trees) -> None:
    """As after a package manager that keeps the folder installs vLLM again."""
    (applied / INTERFACE).unlink()
    shutil.copy(slim("0.20.2") / INTERFACE, applied / INTERFACE)

    assert {ID, "stripped"}.isdisjoint(one.id for one in library.status(applied).overlays)
    assert problem_of(lambda: library.apply(applied, [ID])).what == "no such overlay"


@pytest.mark.deep
def test_from_python(linked: Trees, tmp_path: Path) -> None:
    tree = linked("0.20.2")
    (tmp_path / f"{ID}.vpatch").write_text(PATCH)
    with library.patches(tmp_path / f"{ID}.vpatch"):
        assert ID in {one.id for one in library.status(tree).overlays}
    assert ID not in {one.id for one in library.status(tree).overlays}
    problem = problem_of(lambda: library.patches(tmp_path / "none").__enter__())
    assert (problem.what, problem.cause) == ("no patch files", "no such file or folder")
