"""What vpatch refuses to write, and how it treats files that others changed."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.tree import backup
from vpatch.tree.guard import lock
from vpatch.tree.locate import Tree
from vpatch.tree.write_plan import SitePackages

from tests.conftest import unchanged, untouched
from tests.tree.conftest import COMPANION, INFO, MODULE, RECORD, Sandbox, change, edited, plan_of, settled, untrue


def refuse_edit(path: str) -> str:
    return f"edited after vpatch: {path}: an edit that is not vpatch's would be lost"


@pytest.mark.parametrize("path", [MODULE, COMPANION])
def test_revert_refuses_what_a_user_edited(sandbox: Sandbox, path: str) -> None:
    pristine = sandbox.snapshot()
    sandbox.settle(sandbox.second)
    edit = sandbox.second[path] + b"mine = 1\n"
    sandbox.write(path, edit)
    sandbox.write("vllm/engine/m1.py", b"all = 'mine'\n")

    assert edited(sandbox.tree) == tuple(sorted([path, "vllm/engine/m1.py"]))
    for desired in ({}, sandbox.first | {"vllm/engine/m1.py": b"all = 'mine'\n", path: b"other\n"}):
        said = str(sandbox.refused(desired))
        assert refuse_edit(path) in said
        assert (refuse_edit("vllm/engine/m1.py") in said) is (not desired)

    for gone in (path, "vllm/engine/m1.py"):
        (sandbox.root / gone).unlink()
    sandbox.settle({})
    assert sandbox.snapshot() == pristine


def test_apply_goes_on_from_an_edited_file_and_revert_still_refuses(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)
    edit = sandbox.first[MODULE] + b"mine = 1\n"
    sandbox.write(MODULE, edit)
    more = sandbox.second | {MODULE: edit + b"two = 2  # vpatch: two\n"}

    for desired in (sandbox.first | {MODULE: edit}, more):
        sandbox.settle(desired, allow_edited=True)
        assert (sandbox.root / MODULE).read_bytes() == desired[MODULE]
        assert sandbox.settled(desired)
        assert edited(sandbox.tree) == (MODULE,)
        assert untrue(sandbox.tree, desired) == []
        assert backup.originals(sandbox.tree)[MODULE] == sandbox.modules[MODULE]
        assert refuse_edit(MODULE) in str(sandbox.refused({}))


def test_a_file_put_in_place_anew_is_the_new_original(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)
    new = b"value = 'of another release'\n"
    sandbox.write(MODULE, new)

    desired = sandbox.first | {MODULE: new + b"one = 1  # vpatch: one\n"}
    sandbox.settle(desired, allow_edited=True)
    assert backup.originals(sandbox.tree)[MODULE] == new
    sandbox.settle({})

    assert (sandbox.root / MODULE).read_bytes() == new


@pytest.mark.parametrize("again", [True, False])
def test_a_file_that_an_installer_wrote_with_its_row_is_not_an_edit(sandbox: Sandbox, again: bool) -> None:  # noqa: FBT001
    sandbox.settle(sandbox.first)
    new = b"value = 'of another build'\n"
    rows = (sandbox.root / RECORD).read_text()
    sandbox.write(MODULE, new)
    old = next(line for line in rows.splitlines() if line.startswith(MODULE))
    digest = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(new).digest()).rstrip(b"=").decode()
    sandbox.write(RECORD, rows.replace(old, f"{MODULE},{digest},{len(new)}").encode())
    assert untrue(sandbox.tree, [MODULE]) == []

    if again:
        sandbox.settle(sandbox.first | {MODULE: new + b"one = 1  # vpatch: one\n"})
    sandbox.settle({})

    assert (sandbox.root / MODULE).read_bytes() == new
    assert untrue(sandbox.tree, [MODULE]) == []


def test_a_new_installation_over_ours(sandbox: Sandbox) -> None:
    """The installer removed what RECORD had, and vpatch's folder with it."""
    pristine = sandbox.snapshot()
    record = (sandbox.root / RECORD).read_bytes()
    sandbox.settle(sandbox.first)
    for path, content in {**sandbox.modules, RECORD: record}.items():
        sandbox.write(path, content)
    assert sandbox.settle(sandbox.first)
    assert sandbox.settled(sandbox.first)

    sandbox.settle({})

    assert sandbox.snapshot() == pristine


def test_no_original_kept(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)
    shutil.rmtree(sandbox.root / INFO / "vpatch")

    failure = sandbox.refused(sandbox.second | {"vllm/engine/m1.py": b"# vpatch: two\n"})
    assert [(problem.what, problem.where) for problem in failure.problems] == [
        ("no original kept", MODULE),
        ("no original kept", "vllm/engine/m1.py"),
    ]


def test_an_original_that_a_user_deleted(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)
    (sandbox.root / INFO / "vpatch/originals" / MODULE).unlink()

    assert f"no original kept: {MODULE}: " in str(sandbox.refused({}))


def test_a_patched_tree_whose_dist_info_is_new_needs_nothing(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)
    shutil.rmtree(sandbox.root / INFO / "vpatch")
    sandbox.settle(sandbox.first)  # RECORD has rows of what is gone

    with untouched(sandbox.root):
        assert sandbox.settled(sandbox.first)
        assert untrue(sandbox.tree, sandbox.first) == []
        assert sandbox.settle({}) == ()


def test_without_a_dist_info(sandbox: Sandbox) -> None:
    tree = Tree(sandbox.root, None, None)
    for call in (lambda: change(tree, sandbox.first, None), lambda: lock(tree).__enter__()):
        says = r"no dist-info: .*: originals and provenance are kept in it"
        with unchanged(sandbox.root), pytest.raises(Failure, match=says):
            call()
    assert not settled(tree, sandbox.first, None)

    assert settled(tree, sandbox.modules, None)
    plan = plan_of(SitePackages(tree).snapshot(), sandbox.modules, None, on_edits=False)
    assert (plan.work, plan.writes.changed) == (False, ())


def test_a_kept_record_that_does_not_parse(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)
    sandbox.write(f"{INFO}/vpatch/originals/{RECORD}", b'a.py,"' + b"x" * 200_000)
    assert re.search(r"bad RECORD: .*/originals/", str(sandbox.refused({})))


def test_a_module_that_is_missing(sandbox: Sandbox) -> None:
    for path in (MODULE, "vllm/engine/m1.py"):
        (sandbox.root / path).unlink()
    assert [str(problem) for problem in sandbox.refused(sandbox.first).problems] == [
        f"no such file: {path}: an overlay changes it" for path in (MODULE, "vllm/engine/m1.py")
    ]


def test_symlinks_are_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(sandbox.root / "vllm/layers", elsewhere)
    shutil.rmtree(sandbox.root / "vllm/layers")
    (sandbox.root / "vllm/layers").symlink_to(elsewhere)
    (sandbox.root / MODULE).rename(sandbox.root / "vllm/engine/real.py")
    (sandbox.root / MODULE).symlink_to("real.py")

    failure = sandbox.refused(sandbox.first)

    layers = sorted(path for path in sandbox.first if path.startswith("vllm/layers/"))
    assert [(problem.what, problem.where) for problem in failure.problems] == [
        ("symlink", MODULE),
        *(("symlinked folder", path) for path in layers),
    ]
    assert f"it leads out of the tree, to {elsewhere}" in str(failure)


@pytest.mark.parametrize("path", ["vllm/_vpatch", f"{INFO}/vpatch"])
def test_symlinks_for_our_own_folders_are_refused(sandbox: Sandbox, tmp_path: Path, path: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (sandbox.root / path).symlink_to(tmp_path / "elsewhere")

    assert "symlink" in str(sandbox.refused(sandbox.first))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_symlink_inside_the_tree_is_followed(sandbox: Sandbox) -> None:
    (sandbox.root / "vllm/layers").rename(sandbox.root / "vllm/real")
    (sandbox.root / "vllm/layers").symlink_to("real")

    sandbox.settle(sandbox.first)

    assert (sandbox.root / "vllm/real/m2.py").read_bytes() == sandbox.first["vllm/layers/m2.py"]


def test_a_folder_where_a_file_should_be(sandbox: Sandbox) -> None:
    (sandbox.root / MODULE).unlink()
    (sandbox.root / MODULE).mkdir()

    assert f"cannot read: {MODULE}: " in str(sandbox.refused(sandbox.first))
