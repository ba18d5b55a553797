"""Data files in an installed vLLM: other versions of a patch, lost provenance, a reinstalled release, users' edits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from vpatch.core.edits.data import AddData
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import State
from vpatch.errors import Failure
from vpatch.guest.record import parse
from vpatch.manifest import sha256
from vpatch.tree.apply import apply, revert
from vpatch.tree.locate import Tree, tree_at
from vpatch.tree.verify import verify
from vpatch.tree.write_plan import SitePackages

from tests.conftest import contents_of, unchanged
from tests.snippets import InsertAfter, overlay
from tests.tree.conftest import INFO, make

MODULE, TABLE, NEW = "vllm/engine/m.py", "vllm/engine/table.json", "vllm/E/E=8,N=[1,2].json"
RECORD = f"{INFO}/RECORD"


def demo(*data: AddData) -> Catalogued:
    return overlay(*(edit for one in data for edit in (one.companion, one)))


OLD = sha256(b"{}")
CHANGED, CAME = AddData(TABLE, "[1]", OLD), AddData(NEW, "{}", "")
ITEM = demo(CHANGED, CAME)
OTHER = overlay(InsertAfter(MODULE, "", anchor="x = 1", new="y = 1"), name="other")


@pytest.fixture
def root(public: Path) -> Path:
    root = make(public / "site", record=f"vllm/__init__.py,,\n{MODULE},,\n{TABLE},,\n{RECORD},,\n")
    (root / MODULE).write_text("x = 1\n")
    (root / TABLE).write_text("{}")
    return root


def applied(root: Path, *items: Catalogued) -> dict[str, State]:
    """Apply overlays; return the states before."""
    found, _ = apply(SitePackages(tree_at(root)), items)
    return {one.id: one.state for one in found.before}


def faults(root: Path) -> list[str]:
    tree: Tree = tree_at(root)
    return [str(problem) for problem in verify(tree, [ITEM, OTHER], named=(), python=None).problems]


def test_record_is_true_and_revert_leaves_nothing(root: Path) -> None:
    before = contents_of(root)
    assert applied(root, ITEM, OTHER) == {"demo": State.PENDING, "other": State.PENDING}

    assert faults(root) == []
    rows = parse((root / RECORD).read_bytes())
    assert all((row := rows.row(one.file)) and row.is_true_of(one.text.encode()) for one in (CHANGED, CAME))
    (root / TABLE).write_text("[2]")
    assert any("its sha256 is" in fault for fault in faults(root))
    (root / TABLE).write_text("[1]")
    revert(SitePackages(tree_at(root)), [ITEM, OTHER], [ITEM])
    assert ((root / TABLE).read_text(), (root / NEW).parent.exists()) == ("{}", False)
    assert b"y = 1" in (root / MODULE).read_bytes()
    revert(SitePackages(tree_at(root)), [ITEM, OTHER], None)
    assert contents_of(root) == before


@pytest.mark.parametrize(
    "newer",
    [demo(CHANGED), demo(CAME), demo(AddData(TABLE, "[2]", OLD), CAME), demo(CHANGED, AddData(NEW, "", "")), OTHER],
    ids=["without the new one", "without the changed one", "another text", "another new text", "another overlay"],
)
def test_another_version_of_a_patch(root: Path, newer: Catalogued) -> None:
    """What is there afterwards is what it makes of the release."""
    before = contents_of(root)
    fresh = shutil.copytree(root, root.parent / "fresh")
    applied(fresh, newer)
    applied(root, ITEM)

    applied(root, newer)

    if newer is not OTHER:
        both = ({path: data for path, data in contents_of(one).items() if INFO not in path} for one in (root, fresh))
        assert next(both) == next(both)
    assert applied(root, newer) == {newer.id: State.APPLIED}
    revert(SitePackages(tree_at(root)), [newer], None)
    assert contents_of(root) == before


def test_without_what_vpatch_keeps_nothing_is_taken_for_upstreams(root: Path) -> None:
    applied(root, ITEM)
    shutil.rmtree(root / INFO / "vpatch")

    assert applied(root, ITEM) == {"demo": State.APPLIED}
    with pytest.raises(Failure, match=r"cannot revert: .*demo is applied, and vpatch keeps no original of it"):
        revert(SitePackages(tree_at(root)), [ITEM], [ITEM])


def test_a_release_that_was_installed_anew(root: Path) -> None:
    """Over the patched one, as by pip: its RECORD and files are back, and what vpatch added is still there."""
    before, record = contents_of(root), (root / RECORD).read_bytes()
    applied(root, ITEM)
    (root / TABLE).write_text("{}")
    (root / RECORD).write_bytes(record)

    assert applied(root, ITEM) == {"demo": State.PENDING}
    assert (root / TABLE).read_text() == "[1]"
    revert(SitePackages(tree_at(root)), [ITEM], None)
    assert contents_of(root) == before


def test_a_users_file_with_the_same_text_stays(root: Path) -> None:
    (root / NEW).parent.mkdir()
    (root / NEW).write_text("{}")
    before = contents_of(root)
    applied(root, ITEM)
    applied(root, OTHER)

    revert(SitePackages(tree_at(root)), [ITEM, OTHER], None)

    assert contents_of(root) == before


def test_a_users_edit_is_never_lost(root: Path) -> None:
    applied(root, ITEM)
    (root / NEW).write_text("mine")

    with unchanged(root), pytest.raises(Failure, match="edited after vpatch: vllm/E/E=8"):
        revert(SitePackages(tree_at(root)), [ITEM], None)
    with unchanged(root):
        assert applied(root, ITEM) == {"demo": State.DRIFTED}
    applied(root, OTHER)
    assert (root / NEW).read_text() == "mine"
