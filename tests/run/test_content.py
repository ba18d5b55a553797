"""What a farm holds: exactly the files of `vpatch apply`, and links to everything else."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest
import vpatch.run.planning
from vpatch import AddFile
from vpatch.core.catalogue import Selection, discover
from vpatch.core.edits.data import AddData
from vpatch.errors import Failure
from vpatch.run.content import Content
from vpatch.run.launch import planned
from vpatch.run.store import farm_of
from vpatch.tree.apply import apply
from vpatch.tree.locate import locate
from vpatch.tree.write_plan import SitePackages

from tests.conftest import Trees, contents_of, untouched
from tests.engines import engine_of
from tests.paths import link
from tests.releases import RELEASES, tiered
from tests.run.conftest import FILE, Installed
from tests.snippets import overlay

OTHER = "vllm/engine/other.py"


@pytest.mark.parametrize("release", tiered(RELEASES, ("0.20.2",)))
def test_a_farm_is_what_apply_makes_of_the_tree(
    release: str, pristine: Trees, installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real folders of the farm, its links followed."""
    monkeypatch.setattr(vpatch.run.planning, "Engine", engine_of)
    applied = shutil.copytree(pristine(release), tmp_path / "applied", copy_function=link)
    chosen = Selection().among(discover())
    apply(SitePackages(locate(applied)), chosen, engine_of(chosen))

    with untouched(pristine(release)):
        content = planned(locate(pristine(release)), Selection(), installed.cache)
        farm = farm_of(content, installed.cache, installed.python)

    made = {path: data for path, data in contents_of(farm / "vllm").items() if "__pycache__" not in path}
    below = (path for path in applied.rglob("*") if not path.is_dir() and "__pycache__" not in path.parts)
    linked = {str(path.relative_to(applied / "vllm")) for path in below if path.is_relative_to(applied / "vllm")}
    for path in linked:
        assert (farm / "vllm" / path).read_bytes() == (applied / "vllm" / path).read_bytes()
    assert {path for path, data in made.items() if data is not None} <= linked


def test_the_digest_is_the_same_after_apply(installed: Installed) -> None:
    """Each receipt compares all files that count. Other overlays have another digest."""
    before, fewer = installed.content(), installed.content(only=("turboquant-skip-list",))
    apply(SitePackages(locate(installed.root)), Selection().among(discover()))
    after = installed.content()

    assert fewer.digest != before.digest
    assert (after.digest, after.overlays) == (before.digest, before.overlays)
    assert (after.files, len(before.files) > 10) == ({}, True)
    assert (after.applied, before.applied) == (before.hashes, {})
    assert installed.content() == after


def test_new_modules_beside_upstreams_and_in_a_new_folder(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, deep = "vllm/engine/my_policy.py", "vllm/mine/deep/policy.py"
    item = overlay(AddFile(beside, "x = 1\n"), AddFile(deep, "y = 2\n"), name="mine")
    monkeypatch.setattr(vpatch.run.planning, "discover", lambda: (item,))

    content = vpatch.run.planning.plan(locate(installed.root), Selection())
    farm = farm_of(content, tmp_path / "cache", installed.python)

    assert (farm / deep).read_text() == "# vpatch: mine\ny = 2\n"
    assert (farm / beside).read_text() == "# vpatch: mine\nx = 1\n"
    others = {path.name for path in (installed.root / "vllm/engine").iterdir()} - {"__pycache__"}
    assert others <= {path.name for path in (farm / "vllm/engine").iterdir()}
    assert not (installed.root / "vllm/mine").exists()
    apply(SitePackages(locate(installed.root)), [item])
    after = vpatch.run.planning.plan(locate(installed.root), Selection())
    assert (after.digest, after.files) == (content.digest, {})


def test_data_files_are_served_only_where_they_were_applied(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM looks for them beside the real path of its modules, to which a farm has links."""
    data = AddData("vllm/engine/E=8,N=[1].json", "{}", "")
    item = overlay(data.companion, data, name="mine")
    monkeypatch.setattr(vpatch.run.planning, "discover", lambda: (item,))

    with pytest.raises(Failure, match=r"cannot run: vllm/engine/E=8,N=\[1\]\.json: an overlay changes this data file"):
        vpatch.run.planning.plan(locate(installed.root), Selection())

    apply(SitePackages(locate(installed.root)), [item])
    content = vpatch.run.planning.plan(locate(installed.root), Selection())
    assert (content.files, content.overlays) == ({}, ("mine",))
    assert content.applied.keys() == {data.file, data.companion.file}


def test_a_vllm_that_is_upgraded_between_plan_and_farm_is_noticed(installed: Installed) -> None:
    """The manifest had the hash of the new file beside the patched old one."""
    content = installed.content(only=("turboquant-skip-list",))
    (installed.root / FILE).unlink()
    (installed.root / FILE).write_text("new = 1\n")
    farm = farm_of(content, installed.cache, installed.python)
    command = [str(installed.python), "-c", "import vpatch_receipt\nvpatch_receipt.register()"]
    ran = subprocess.run(command, env={"PYTHONPATH": str(farm)}, capture_output=True, text=True, check=False)

    assert ran.returncode == 1
    assert f"{installed.root}/{FILE}: it has changed" in ran.stderr.splitlines()[-1]


def test_links_and_the_farms_name(small: Content) -> None:
    """A new file in a real folder gives another farm; bytecode, which is linked but for changed modules, does not."""

    def again() -> Content:
        return Content(small.root, small.overlays, small.files)

    before = again().key
    (small.root / OTHER).write_text("")
    (small.root / "vllm.libs").mkdir()  # of a repaired wheel, beside the package
    for file in (OTHER, FILE):
        py_compile.compile(str(small.root / file))
    links = again().links

    assert links[OTHER] == str(small.root / OTHER)
    assert links["vllm.libs"] == str(small.root / "vllm.libs")
    linked = [path for path in links if path.startswith("vllm/engine/__pycache__/")]
    assert [path.rpartition("/")[2].partition(".")[0] for path in linked] == ["other"]
    assert again().key != before
    (small.root / OTHER).unlink()
    (small.root / "vllm.libs").rmdir()
    assert again().key == before


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    refused = PermissionError(13, "Permission denied", str(tmp_path / "vllm"))
    monkeypatch.setattr(os, "scandir", Mock(side_effect=refused))
    with pytest.raises(Failure, match=f"cannot read: {tmp_path}/vllm: permission denied"):
        _ = Content(tmp_path, (), {}).links
