"""What the writer refuses, and what it makes of files that others changed."""

from __future__ import annotations

import base64
import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vpatch.errors import Failure
from vpatch.tree import writer
from vpatch.tree.tree import Site

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

INFO = "vllm-1.0.dist-info"
RECORD = f"{INFO}/RECORD"
MODULE = "vllm/engine/m0.py"
COMPANION = "vllm/_vpatch/first.py"


def refuse_edit(path: str) -> str:
    return f"edited after vpatch: {path}: somebody's edit is in it"


@pytest.mark.parametrize("path", [MODULE, COMPANION])
def test_revert_refuses_what_somebody_edited(tree: Tree, path: str) -> None:
    pristine = tree.snapshot()
    tree.settle(tree.second)
    edit = tree.second[path] + b"mine = 1\n"
    tree.write(path, edit)
    tree.write("vllm/engine/m1.py", b"all = 'mine'\n")
    before = tree.snapshot()

    assert writer.edited(tree.site) == tuple(sorted([path, "vllm/engine/m1.py"]))
    for desired in ({}, tree.first | {"vllm/engine/m1.py": b"all = 'mine'\n", path: b"other\n"}):
        with pytest.raises(Failure) as failure:
            tree.settle(desired)
        assert refuse_edit(path) in str(failure.value)
        assert (refuse_edit("vllm/engine/m1.py") in str(failure.value)) is (not desired)
    assert tree.snapshot() == before

    for gone in (path, "vllm/engine/m1.py"):
        (tree.root / gone).unlink()
    tree.settle({})
    assert tree.snapshot() == pristine


def test_apply_goes_on_from_an_edited_file_and_revert_still_refuses(tree: Tree) -> None:
    tree.settle(tree.first)
    edit = tree.first[MODULE] + b"mine = 1\n"
    tree.write(MODULE, edit)
    more = tree.second | {MODULE: edit + b"two = 2  # vpatch: two\n"}

    for desired in (tree.first | {MODULE: edit}, more):
        tree.settle(desired, allow_edited=True)
        assert (tree.root / MODULE).read_bytes() == desired[MODULE]
        assert tree.settled(desired)
        assert writer.edited(tree.site) == (MODULE,)
        assert writer.record_problems(tree.site, desired) == ()
        assert writer.originals(tree.site)[MODULE] == tree.modules[MODULE]
        with pytest.raises(Failure, match=refuse_edit(MODULE)):
            tree.settle({})


def test_a_file_put_in_place_anew_is_the_new_original(tree: Tree) -> None:
    tree.settle(tree.first)
    new = b"value = 'of another release'\n"
    tree.write(MODULE, new)

    desired = tree.first | {MODULE: new + b"one = 1  # vpatch: one\n"}
    tree.settle(desired, allow_edited=True)
    assert writer.originals(tree.site)[MODULE] == new
    tree.settle({})

    assert (tree.root / MODULE).read_bytes() == new


@pytest.mark.parametrize("again", [True, False])
def test_a_file_that_an_installer_wrote_with_its_row_is_nobodys_edit(tree: Tree, again: bool) -> None:  # noqa: FBT001
    tree.settle(tree.first)
    new = b"value = 'of another build'\n"
    rows = (tree.root / RECORD).read_text()
    tree.write(MODULE, new)
    old = next(line for line in rows.splitlines() if line.startswith(MODULE))
    digest = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(new).digest()).rstrip(b"=").decode()
    tree.write(RECORD, rows.replace(old, f"{MODULE},{digest},{len(new)}").encode())
    assert [problem.where for problem in writer.record_problems(tree.site, [MODULE])] == []

    if again:
        tree.settle(tree.first | {MODULE: new + b"one = 1  # vpatch: one\n"})
    tree.settle({})

    assert (tree.root / MODULE).read_bytes() == new
    assert writer.record_problems(tree.site, [MODULE]) == ()


def test_a_new_installation_over_ours(tree: Tree) -> None:
    """The installer removed what RECORD had, and the folder with it, and left nothing else of ours."""
    pristine = tree.snapshot()
    record = (tree.root / RECORD).read_bytes()
    tree.settle(tree.first)
    for path, content in {**tree.modules, RECORD: record}.items():
        tree.write(path, content)
    assert tree.settle(tree.first)
    assert tree.settled(tree.first)

    tree.settle({})

    assert tree.snapshot() == pristine


def test_no_original_kept(tree: Tree) -> None:
    tree.settle(tree.first)
    shutil.rmtree(tree.root / INFO / "vpatch")
    before = tree.snapshot()

    with pytest.raises(Failure) as failure:
        tree.settle(tree.second | {"vllm/engine/m1.py": b"# vpatch: two\n"})
    assert [(problem.what, problem.where) for problem in failure.value.problems] == [
        ("no original kept", MODULE),
        ("no original kept", "vllm/engine/m1.py"),
    ]
    assert tree.snapshot() == before


def test_an_original_that_somebody_deleted(tree: Tree) -> None:
    tree.settle(tree.first)
    (tree.root / INFO / "vpatch/originals" / MODULE).unlink()

    with pytest.raises(Failure, match=f"no original kept: {MODULE}: "):
        tree.settle({})


def test_a_patched_tree_whose_dist_info_is_new_needs_nothing(tree: Tree) -> None:
    tree.settle(tree.first)
    shutil.rmtree(tree.root / INFO / "vpatch")
    tree.settle(tree.first)  # RECORD has rows of what is gone
    inodes = tree.inodes()

    assert tree.settled(tree.first)
    assert writer.record_problems(tree.site, tree.first) == ()
    assert tree.settle({}) == ()
    assert tree.inodes() == inodes


def test_without_a_dist_info(tree: Tree) -> None:
    site = Site(tree.root, None, None)
    before = tree.snapshot()
    for call in (
        lambda: writer.settle(site, tree.first, None, pristine=lambda *_: True),
        lambda: writer.lock(site).__enter__(),
    ):
        with pytest.raises(Failure, match=r"no dist-info: .*: originals and provenance are kept in it"):
            call()
    assert tree.snapshot() == before
    assert not writer.settled(site, tree.first, None)

    assert writer.settled(site, tree.modules, None)
    assert writer.settle(site, tree.modules, None, pristine=lambda *_: True) == ()
    assert [problem.what for problem in writer.record_problems(site, [])] == ["no RECORD"]


def test_without_record(tree: Tree) -> None:
    (tree.root / RECORD).unlink()
    before = tree.snapshot()

    with pytest.raises(Failure, match=rf"no RECORD: {RECORD}: it could not be kept true"):
        tree.settle(tree.first)
    assert tree.snapshot() == before


def test_a_record_that_is_none(tree: Tree) -> None:
    bad = b'a.py,"' + b"x" * 200_000
    tree.write(RECORD, bad)
    with pytest.raises(Failure, match=rf"bad RECORD: {RECORD}: line 1"):
        tree.settle(tree.first)


def test_a_kept_record_that_is_none(tree: Tree) -> None:
    tree.settle(tree.first)
    tree.write(f"{INFO}/vpatch/originals/{RECORD}", b'a.py,"' + b"x" * 200_000)
    with pytest.raises(Failure, match=r"bad RECORD: .*/originals/"):
        tree.settle({})


def test_a_module_that_is_missing(tree: Tree) -> None:
    for path in (MODULE, "vllm/engine/m1.py"):
        (tree.root / path).unlink()
    with pytest.raises(Failure) as failure:
        tree.settle(tree.first)

    assert [str(problem) for problem in failure.value.problems] == [
        f"no such file: {path}: an overlay changes it" for path in (MODULE, "vllm/engine/m1.py")
    ]


def test_symlinks_are_refused(tree: Tree, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tree.root / "vllm/layers", elsewhere)
    shutil.rmtree(tree.root / "vllm/layers")
    (tree.root / "vllm/layers").symlink_to(elsewhere)
    (tree.root / MODULE).rename(tree.root / "vllm/engine/real.py")
    (tree.root / MODULE).symlink_to("real.py")
    before = tree.snapshot()

    with pytest.raises(Failure) as failure:
        tree.settle(tree.first)

    layers = sorted(path for path in tree.first if path.startswith("vllm/layers/"))
    assert [(problem.what, problem.where) for problem in failure.value.problems] == [
        ("symlink", MODULE),
        *(("symlinked folder", path) for path in layers),
    ]
    assert f"it leads out of the tree, to {elsewhere}" in str(failure.value)
    assert tree.snapshot() == before


@pytest.mark.parametrize("path", ["vllm/_vpatch", f"{INFO}/vpatch"])
def test_symlinks_for_our_own_folders_are_refused(tree: Tree, tmp_path: Path, path: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tree.root / path).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(Failure, match="symlink"):
        tree.settle(tree.first)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_symlink_inside_the_tree_is_followed(tree: Tree) -> None:
    (tree.root / "vllm/layers").rename(tree.root / "vllm/real")
    (tree.root / "vllm/layers").symlink_to("real")

    tree.settle(tree.first)

    assert (tree.root / "vllm/real/m0.py").read_bytes() == tree.first["vllm/layers/m0.py"]


def test_a_folder_where_a_file_should_be(tree: Tree) -> None:
    (tree.root / MODULE).unlink()
    (tree.root / MODULE).mkdir()

    with pytest.raises(Failure, match=f"cannot read: {MODULE}: "):
        tree.settle(tree.first)
