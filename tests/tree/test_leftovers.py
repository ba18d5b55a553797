"""A patched vLLM that a package manager replaced which does not read RECORD, as conda, apt and rpm: what it leaves."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path

import pytest
from vpatch import AddFile, api
from vpatch.tree.locate import locate

from tests.conftest import Program, Trees, contents_of
from tests.hybrid import COMPANION, CONFIG, HYBRID, INFO
from tests.paths import link
from tests.snippets import overlay

NEW = "vllm-0.21.0.dist-info"
ANOTHER = ("--overlay", "turboquant-skip-list")
SAYS = f"left over: {INFO}: an earlier vLLM's package manager left it"


def upgraded(root: Path, new: Path) -> None:
    """Remove and add what such a package manager does: the files of the packages, and folders that are empty."""
    for path in (*root.glob("vllm/*"), *(root / INFO).iterdir()):
        if path.name not in {"_vpatch", "vpatch"}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(new, root, copy_function=link, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, slim: Trees) -> Path:
    root = shutil.copytree(slim("0.20.2"), tmp_path_factory.mktemp("left") / "template", copy_function=link)
    assert api.apply(root, [HYBRID]).changed
    upgraded(root, slim("0.21.0"))
    return root


@pytest.fixture
def left(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "linked")


def versions(root: Path) -> list[str | None]:
    found = distributions(name="vllm", path=[str(root)])
    return [one.metadata["Version"] for one in found]


def test_it_is_reported_and_revert_removes_it(vpatch: Program, left: Path, slim: Trees) -> None:
    assert None in versions(left)

    assert locate(left).dist_info == NEW
    for command in ("status", "diff", "apply"):
        ran = vpatch(command, *ANOTHER, *(["-n"] if command == "apply" else []), left)
        assert (ran.code, SAYS in ran.err) == (0, command != "diff"), ran
    ran = vpatch("verify", *ANOTHER, left)
    assert (ran.code, SAYS in ran.err) == (1, True)
    assert f"{SAYS}, with what vpatch kept; Python may find no version of vllm; `vpatch revert` removes it" in ran.err

    ran = vpatch("revert", left)

    assert (ran.code, ran.err.splitlines()[-1]) == (0, f"Removed {INFO}, which an earlier vLLM left.")
    assert versions(left) == ["0.21.0"]
    assert contents_of(left) == contents_of(slim("0.21.0"))
    assert vpatch("revert", "--json", left).json["changed"] == []


def test_with_overlays_on_the_new_one(vpatch: Program, left: Path, slim: Trees) -> None:
    ran = vpatch("apply", *ANOTHER, left)
    assert (ran.code, SAYS in ran.err) == (0, True)
    assert vpatch("revert", *ANOTHER, left).code == 0
    assert (left / INFO).exists(), "that names overlays"

    assert vpatch("apply", *ANOTHER, left).code == 0
    ran = vpatch("revert", "--json", left)

    assert INFO in ran.json["removed"]
    assert contents_of(left) == contents_of(slim("0.21.0"))


SHAPES: dict[str, Callable[[Path], object]] = {
    "empty": lambda info: shutil.rmtree(info / "vpatch"),  # a killed run was about to remove the folder
    "without provenance": lambda info: (info / "vpatch/provenance.json").unlink(),
    "with broken provenance": lambda info: (info / "vpatch/provenance.json").write_text("{"),
    "with a link": lambda info: (info / "vpatch/link").symlink_to(info.parent / "vllm"),
    "with a file of another program": lambda info: (info / "INSTALLER").write_text("conda"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_it_may_be(vpatch: Program, left: Path, shape: str) -> None:
    SHAPES[shape](left / INFO)
    stays = "program" in shape
    code = (left / "vllm/config/cache.py").read_bytes()

    ran = vpatch("revert", left)

    assert ((left / INFO).exists(), (left / INFO / "vpatch").exists()) == (stays, False), ran
    known = "provenance" not in shape and shape != "empty"  # else nothing shows whose the companions are
    assert (ran.code, "cannot revert: vllm/_vpatch/" in ran.err) == (int(not known), not known)
    assert (left / "vllm/config/cache.py").read_bytes() == code


def test_an_edited_companion_stays(vpatch: Program, left: Path) -> None:
    (left / COMPANION).write_bytes((left / COMPANION).read_bytes() + b"mine = 1\n")

    assert f"cannot revert: {COMPANION}: " in vpatch("revert", left).err
    assert [path.name for path in (left / "vllm/_vpatch").iterdir()] == [Path(COMPANION).name]


def test_a_module_of_the_old_one_that_is_still_there(vpatch: Program, left: Path, patched: Trees) -> None:
    """It imports a companion, and its original is in the folder."""
    (left / CONFIG).unlink()
    (left / CONFIG).write_bytes((patched("0.20.2", HYBRID) / CONFIG).read_bytes())

    assert f"cannot revert: {CONFIG}: " in vpatch("revert", left).err

    assert (left / COMPANION).is_file()
    assert (left / INFO / "vpatch/originals" / CONFIG).is_file()


def test_new_modules_of_the_old_one(slim: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go with the folders that vpatch made; a user's file among them stays."""
    item = overlay(*(AddFile(f"vllm/{name}.py", "x = 1\n") for name in ("config/mine", "mine/deep/one", "mine/two")))
    monkeypatch.setattr(api, "discover", lambda: (item,))
    root = shutil.copytree(slim("0.20.2"), tmp_path / "root", copy_function=link)
    assert len(api.apply(root).added) == 3
    listed = [root / path for path in contents_of(slim("0.20.2"))]
    for path in (path for path in listed if path.is_file()):
        path.unlink()
    shutil.copytree(slim("0.21.0"), root, copy_function=link, dirs_exist_ok=True)
    (root / "vllm/mine/notes.txt").write_text("mine")

    api.revert(root)

    left = {path: content for path, content in contents_of(root).items() if path.startswith("vllm/mine")}
    assert left == {"vllm/mine": None, "vllm/mine/notes.txt": b"mine"}
    assert {*contents_of(root)} == {*contents_of(slim("0.20.2")), *contents_of(slim("0.21.0")), *left} - {
        path for path in contents_of(slim("0.20.2")) if path.startswith(INFO)
    }


def test_it_may_have_the_only_originals(vpatch: Program, left: Path) -> None:
    """Without an installation, nothing is removed."""
    shutil.rmtree(left / NEW)
    before = contents_of(left)

    assert "reinstall vLLM; `vpatch revert` then removes it" in vpatch("status", *ANOTHER, left).err
    vpatch("revert", left)

    assert contents_of(left) == before
