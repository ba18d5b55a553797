from __future__ import annotations

import hashlib
import json
import os
import pwd
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from vpatch.errors import Failure
from vpatch.tree import backup, writer
from vpatch.tree.tree import Site

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

PROVENANCE = "vllm-1.0.dist-info/vpatch/provenance.json"
NOT_OURS = [
    b"",
    b"{",
    b"\xff",
    b"[]",
    b"1",
    b"{}",
    b'{"schema": 2, "files": {}}',
    b'{"schema": 1, "files": []}',
    b'{"schema": 1, "files": {"vllm/engine/m0.py": {}}}',
    b'{"schema": 1, "files": {"vllm/engine/m0.py": {"before": null, "after": 1}}}',
]


def said(tree: Tree) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = json.loads((tree.root / PROVENANCE).read_bytes())
    return answer


def test_provenance(tree: Tree) -> None:
    module, companion = "vllm/engine/m0.py", "vllm/_vpatch/first.py"
    tree.settle(tree.first)

    about = said(tree)
    assert about.keys() == {"schema", "vpatch", "when", "who", "overlays", "files"}
    assert about["schema"] == 1
    assert about["when"] == "2023-11-14T22:13:20Z"
    assert about["who"] == pwd.getpwuid(os.getuid()).pw_name
    assert about["overlays"] == {"overlays": sorted(tree.first)}
    assert list(about["files"]) == sorted(tree.first)
    assert about["files"][module] == {
        "before": hashlib.sha256(tree.modules[module]).hexdigest(),
        "after": [hashlib.sha256(tree.first[module]).hexdigest()],
    }
    assert about["files"][companion]["before"] is None


def test_when_is_now_and_who_may_have_no_name(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    monkeypatch.setattr(os, "getuid", lambda: 54_321)
    tree.settle(tree.first)

    assert said(tree)["when"] > "2024"
    assert said(tree)["who"] == "54321"


@pytest.mark.parametrize("epoch", ["soon", "1" * 30])
def test_a_bad_epoch_is_refused(tree: Tree, monkeypatch: pytest.MonkeyPatch, epoch: str) -> None:
    before = tree.snapshot()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)

    with pytest.raises(Failure, match=f"bad SOURCE_DATE_EPOCH: {epoch}: not a number of seconds"):
        tree.settle(tree.first)
    assert tree.snapshot() == before


def test_when_and_who_are_of_the_last_change(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.settle(tree.first)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    tree.settle(tree.first)
    assert said(tree)["when"].startswith("2023")

    tree.settle(tree.second)
    assert said(tree)["when"].startswith("1970")


def test_the_originals_are_kept(tree: Tree) -> None:
    record = (tree.root / "vllm-1.0.dist-info/RECORD").read_bytes()
    tree.settle(tree.first)

    folder = tree.root / "vllm-1.0.dist-info/vpatch/originals"
    assert (folder / "vllm/engine/m0.py").read_bytes() == tree.modules["vllm/engine/m0.py"]
    assert (folder / "vllm-1.0.dist-info/RECORD").read_bytes() == record
    assert writer.originals(tree.site) == {path: tree.modules.get(path) for path in tree.first}


@pytest.mark.parametrize("content", NOT_OURS)
def test_broken_provenance_stops_revert_and_not_apply(tree: Tree, content: bytes) -> None:
    pristine = tree.snapshot()
    tree.settle(tree.first)
    whole = tree.snapshot()
    (tree.root / PROVENANCE).write_bytes(content)
    broken = tree.snapshot()

    for call in (lambda: tree.settle({}), lambda: writer.originals(tree.site), lambda: writer.edited(tree.site)):
        with pytest.raises(Failure, match=r"cannot read provenance: vllm-1\.0\.dist-info/vpatch: not what vpatch"):
            call()
    assert not tree.settled(tree.first)
    assert tree.snapshot() == broken

    tree.settle(tree.first, allow_edited=True)
    assert tree.snapshot() == whole
    tree.settle({})
    assert tree.snapshot() == pristine


def test_lost_provenance_stops_revert(tree: Tree) -> None:
    tree.settle(tree.first)
    (tree.root / PROVENANCE).unlink()
    before = tree.snapshot()

    with pytest.raises(Failure, match=r"edited after vpatch: vllm/engine/m0\.py"):
        tree.settle({})
    assert tree.snapshot() == before


def test_nothing_is_kept_without_a_dist_info(tree: Tree) -> None:
    site = Site(tree.root, None, None)

    assert backup.read(site) == backup.Kept()
    assert writer.originals(site) == {}
    assert writer.edited(site) == ()


@pytest.mark.parametrize("path", ["vpatch", "vpatch/originals"])
def test_a_folder_that_cannot_be_listed_is_named(tree: Tree, path: str) -> None:
    folder = tree.root / "vllm-1.0.dist-info" / path
    folder.parent.mkdir(exist_ok=True)
    folder.symlink_to(folder)

    with pytest.raises(Failure, match=r"cannot read: .*: too many levels of symbolic links"):
        backup.read(tree.site)
