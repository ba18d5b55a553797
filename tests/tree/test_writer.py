"""What the writer promises where nothing goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vpatch.tree import writer
from vpatch.tree.tree import Site

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

INFO = "vllm-1.0.dist-info"
RECORD = f"{INFO}/RECORD"
MODULE = "vllm/engine/m0.py"
COMPANION = "vllm/_vpatch/first.py"


def test_apply(tree: Tree) -> None:
    assert tree.settle(tree.first) == tuple(sorted([*tree.first, RECORD]))

    assert {path: (tree.root / path).read_bytes() for path in tree.first} == tree.first
    untouched = tree.modules.keys() - tree.first.keys()
    assert {(tree.root / path).read_bytes() == tree.modules[path] for path in untouched} == {True}
    assert writer.record_problems(tree.site, [*tree.modules, *tree.first]) == ()
    assert writer.edited(tree.site) == ()


def test_again_changes_nothing(tree: Tree) -> None:
    tree.settle(tree.first)
    before, inodes = tree.snapshot(), tree.inodes()

    assert tree.settled(tree.first)
    assert tree.settle(tree.first) == ()
    with writer.lock(tree.site):
        note = {"overlays": sorted(tree.first)}
        assert writer.settle(tree.site, tree.first, note, pristine=lambda *_: False) == ()
    assert tree.snapshot() == before
    assert tree.inodes() == inodes


def test_revert_gives_everything_back(tree: Tree) -> None:
    pristine = tree.snapshot()
    tree.settle(tree.first)

    assert tree.settle({}) == tuple(sorted([*tree.first, RECORD]))
    assert tree.snapshot() == pristine
    assert tree.settle({}) == ()


@pytest.mark.parametrize(
    "record", [b"", b"a.py,,", b"vllm/engine/m0.py,,\r\n\r\n", b'"vllm/engine/m0.py",sha384=x,7\nb.py,,\n\n']
)
def test_revert_gives_any_record_back(tree: Tree, record: bytes) -> None:
    """RECORD need not be true, or ours in style, before."""
    tree.write(RECORD, record)
    pristine = tree.snapshot()
    tree.settle(tree.first)
    assert writer.record_problems(tree.site, tree.first) == ()
    tree.settle(tree.second)

    tree.settle({})

    assert tree.snapshot() == pristine


def test_rows_keep_their_place_and_others_rows_stay(tree: Tree) -> None:
    before = (tree.root / RECORD).read_bytes().splitlines()
    tree.settle(tree.first)
    after = (tree.root / RECORD).read_bytes().splitlines()
    assert [line.split(b",")[0] for line in after[: len(before)]] == [line.split(b",")[0] for line in before]
    with (tree.root / RECORD).open("ab") as file:
        file.write(b"vllm/added.py,,\n")

    tree.settle({})

    assert (tree.root / RECORD).read_bytes().splitlines() == [*before, b"vllm/added.py,,"]


def test_more_and_less(tree: Tree) -> None:
    pristine = tree.snapshot()
    tree.settle(tree.first)
    first = tree.snapshot()

    changed = {path for path, content in tree.second.items() if tree.first.get(path) != content}
    assert tree.settle(tree.second) == tuple(sorted([*changed, RECORD]))
    assert tree.settle(tree.first) == tuple(sorted([*changed, RECORD]))
    assert tree.snapshot() == first
    tree.settle({})
    assert tree.snapshot() == pristine


def test_a_changed_note_is_written(tree: Tree) -> None:
    tree.settle(tree.first)

    assert not writer.settled(tree.site, tree.first, {"overlays": ["other"]})
    assert writer.settle(tree.site, tree.first, {"overlays": ["other"]}, pristine=lambda *_: True) == (RECORD,)
    assert writer.settled(tree.site, tree.first, {"overlays": ["other"]})


def test_asking_for_what_is_there_anyway(tree: Tree) -> None:
    before = tree.snapshot()

    assert tree.settle({MODULE: tree.modules[MODULE]}) == ()
    assert tree.snapshot() == before


def test_every_write_makes_a_new_inode(tree: Tree, public: Path) -> None:
    """As in an environment whose files are hard links to uv's cache."""
    cache, before = tree.copy(public / "cache"), tree.snapshot()
    tree.settle(tree.first)
    assert cache.snapshot() == before
    other, applied = tree.copy(public / "other"), tree.snapshot()
    tree.settle({})

    assert (cache.snapshot(), other.snapshot()) == (before, applied)


def test_modes_and_owners_stay(tree: Tree) -> None:
    (tree.root / MODULE).chmod(0o750)
    (tree.root / RECORD).chmod(0o664)
    tree.root.joinpath(INFO).chmod(0o775)
    owner = 4321 if os.getuid() == 0 else os.getuid()
    os.chown(tree.root / MODULE, owner, -1)
    old = os.umask(0o077)
    try:
        tree.settle(tree.first)
    finally:
        os.umask(old)

    assert (tree.root / MODULE).stat().st_uid == owner
    assert {
        path: (tree.root / path).stat().st_mode & 0o7777
        for path in (MODULE, RECORD, COMPANION, "vllm/_vpatch", f"{INFO}/vpatch/provenance.json", f"{INFO}/vpatch")
    } == {
        MODULE: 0o750,
        RECORD: 0o664,
        COMPANION: 0o664,
        "vllm/_vpatch": 0o775,
        f"{INFO}/vpatch/provenance.json": 0o664,
        f"{INFO}/vpatch": 0o775,
    }


def test_bytecode_of_companions_goes_with_them(tree: Tree) -> None:
    pristine = tree.snapshot()
    tree.settle(tree.first)
    for name in ("first.cpython-312.pyc", "gone.cpython-312.pyc"):
        tree.write(f"vllm/_vpatch/__pycache__/{name}", b"")

    tree.settle({})

    assert tree.snapshot() == pristine


def test_anothers_file_among_the_companions_stays(tree: Tree) -> None:
    tree.settle(tree.first)
    tree.write("vllm/_vpatch/notes.txt", b"mine")

    tree.settle({})

    assert [path.name for path in (tree.root / "vllm/_vpatch").iterdir()] == ["notes.txt"]


def test_what_strays_in_the_folder_goes(tree: Tree) -> None:
    tree.settle(tree.first)
    before = tree.snapshot()
    tree.write(f"{INFO}/vpatch/stray/file", b"")
    tree.write(f"{INFO}/vpatch/stray.txt", b"")
    tree.write("vllm/engine/.m1.py.vpatch-new", b"half")

    assert not tree.settled(tree.first)
    assert tree.settle(tree.first) == ()
    assert tree.snapshot() == before


def test_a_staged_file_of_an_older_run_is_in_nobodys_way(tree: Tree, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"untouched")
    (tree.root / "vllm/engine/.m0.py.vpatch-new").symlink_to(other)
    tree.write("vllm/engine/.m1.py.vpatch-new", b"half")

    tree.settle(tree.first)

    assert other.read_bytes() == b"untouched"
    assert not list(tree.root.rglob("*.vpatch-new"))


def test_record_problems(tree: Tree) -> None:
    tree.settle(tree.first)
    tree.write(MODULE, b"edited\n")
    tree.write("vllm/new.py", b"")
    tree.write(f"{INFO}/vpatch/originals/{MODULE}", b"edited\n")
    (tree.root / COMPANION).unlink()

    problems = writer.record_problems(tree.site, [*tree.first, "vllm/new.py"])

    assert [(problem.what, problem.where) for problem in problems] == [
        ("RECORD is not true", f"{INFO}/vpatch/originals/{MODULE}"),
        ("missing file", COMPANION),
        ("RECORD is not true", MODULE),
        ("not in RECORD", "vllm/new.py"),
    ]


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_uninstalling_removes_all_of_it(tree: Tree, tmp_path: Path, installer: str) -> None:
    wheel = tmp_path / "vllm-1.0-py3-none-any.whl"
    about = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(wheel, "w") as file:
        for path, content in {**tree.snapshot(), f"{INFO}/WHEEL": about}.items():
            if content is not None:
                file.writestr(path, content)
    venv, uv, pip = tmp_path / "venv", [sys.executable, "-m", "uv"], [sys.executable, "-m", "pip"]
    if installer == "pip":
        shown = subprocess.run([*pip, "--version"], check=False, capture_output=True)
        if shown.returncode:
            pytest.skip("no pip here")
    subprocess.run([*uv, "venv", "-q", "--offline", "--python", sys.executable, venv], check=True)
    python = venv / "bin/python"
    manage: list[str | Path] = [*uv, "pip"] if installer == "uv" else [*pip, "--python", python]
    target: list[str | Path] = ["--python", python] if installer == "uv" else []
    link = ["--link-mode", "copy"] if installer == "uv" else []
    subprocess.run([*manage, "install", "-q", *target, *link, "--no-index", "--no-deps", wheel], check=True)
    root = next(venv.glob("lib/python*/site-packages")).resolve()
    installed = type(tree)(Site(root, INFO, "1.0"), tree.first, tree.second, tree.modules)
    installed.settle(tree.first)
    installed.settle(tree.second)
    subprocess.run([python, "-c", "import vllm._vpatch.first, vllm.engine.m0"], check=True)
    assert writer.record_problems(installed.site, tree.second) == ()

    yes = [] if installer == "uv" else ["-y"]
    subprocess.run([*manage, "uninstall", "-q", *target, *yes, "vllm"], check=True)

    assert not list(root.glob("vllm*"))
