from __future__ import annotations

import hashlib
import json
import os
import pwd
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import pytest
from vpatch.errors import Failure
from vpatch.tree import backup
from vpatch.tree.locate import Tree

from tests.conftest import unchanged
from tests.failures import problem_of
from tests.tree.conftest import COMPANION, INFO, MODULE, Sandbox, edited

PROVENANCE = f"{INFO}/vpatch/provenance.json"
NOT_OURS = [  # more of them in `test_manifest`
    b"{",
    b"\xff",
    b'{"schema": 2, "files": {}}',
    b'{"files": {}, "folders": "vllm/mine"}',
    b'{"files": {}, "folders": ["vllm/../mine"]}',
    b'{"files": {}, "folders": ["/tmp"]}',
]


def said(sandbox: Sandbox) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = json.loads((sandbox.root / PROVENANCE).read_bytes())
    return answer


def test_provenance(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)

    about = said(sandbox)
    assert about.keys() == {"schema", "vpatch", "when", "who", "overlays", "folders", "files"}
    assert about["vpatch"] == version("vpatch")
    assert about["schema"] == 1
    assert about["when"] == "2023-11-14T22:13:20Z"
    assert about["who"] == pwd.getpwuid(os.getuid()).pw_name
    assert about["overlays"] == {"overlays": sorted(sandbox.first)}
    assert list(about["files"]) == sorted(sandbox.first)
    assert about["files"][MODULE] == {
        "before": hashlib.sha256(sandbox.modules[MODULE]).hexdigest(),
        "after": [hashlib.sha256(sandbox.first[MODULE]).hexdigest()],
    }
    assert about["files"][COMPANION]["before"] is None


def test_when_is_now_and_who_may_have_no_name(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    monkeypatch.setattr(os, "getuid", lambda: 54_321)
    sandbox.settle(sandbox.first)

    assert said(sandbox)["when"] > "2024"
    assert said(sandbox)["who"] == "54321"


def test_when_and_who_are_of_the_last_change(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.settle(sandbox.first)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    sandbox.settle(sandbox.first)
    assert said(sandbox)["when"].startswith("2023")

    sandbox.settle(sandbox.second)
    assert said(sandbox)["when"].startswith("1970")


def test_the_originals_are_kept(sandbox: Sandbox) -> None:
    record = (sandbox.root / "vllm-1.0.dist-info/RECORD").read_bytes()
    sandbox.settle(sandbox.first)

    folder = sandbox.root / "vllm-1.0.dist-info/vpatch/originals"
    assert (folder / "vllm/engine/m0.py").read_bytes() == sandbox.modules["vllm/engine/m0.py"]
    assert (folder / "vllm-1.0.dist-info/RECORD").read_bytes() == record
    assert backup.originals(sandbox.tree) == {path: sandbox.modules.get(path) for path in sandbox.first}


@pytest.mark.parametrize("content", NOT_OURS)
def test_broken_provenance_stops_revert_and_not_apply(sandbox: Sandbox, content: bytes) -> None:
    pristine = sandbox.snapshot()
    sandbox.settle(sandbox.first)
    whole = sandbox.snapshot()
    (sandbox.root / PROVENANCE).write_bytes(content)

    with unchanged(sandbox.root):
        for call in (lambda: sandbox.settle({}), lambda: backup.originals(sandbox.tree), lambda: edited(sandbox.tree)):
            assert str(problem_of(call)).startswith(f"cannot read provenance: {INFO}/vpatch: not what vpatch")
    sandbox.settle(sandbox.first, allow_edited=True)
    assert sandbox.snapshot() == whole
    sandbox.settle({})
    assert sandbox.snapshot() == pristine


@pytest.mark.parametrize("path", ["vllm/engine", "vllm/layers/m2.py"])
def test_provenance_that_claims_more_than_vpatch_did(sandbox: Sandbox, path: str) -> None:
    """What an installer wrote stays."""
    sandbox.settle(sandbox.first)
    about = dict(said(sandbox))
    files = {**about["files"], "vllm/layers/m4.py": {"before": None, "after": []}}
    (sandbox.root / PROVENANCE).write_text(json.dumps({**about, "files": files, "folders": [path]}))

    sandbox.settle({})

    assert {name: (sandbox.root / name).read_bytes() for name in sandbox.modules} == sandbox.modules


def test_lost_provenance_stops_revert(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)
    (sandbox.root / PROVENANCE).unlink()

    assert f"edited after vpatch: {MODULE}" in str(sandbox.refused({}))


def test_nothing_is_kept_without_a_dist_info(sandbox: Sandbox) -> None:
    site = Tree(sandbox.root, None, None)

    assert backup.read(site) == backup.Kept()
    assert backup.originals(site) == {}
    assert edited(site) == ()


@pytest.mark.parametrize("path", ["vpatch", "vpatch/originals"])
def test_a_folder_that_cannot_be_listed_is_named(sandbox: Sandbox, path: str) -> None:
    folder = sandbox.root / "vllm-1.0.dist-info" / path
    folder.parent.mkdir(exist_ok=True)
    folder.symlink_to(folder)

    with pytest.raises(Failure, match=r"cannot read: .*: too many levels of symbolic links"):
        backup.read(sandbox.tree)
