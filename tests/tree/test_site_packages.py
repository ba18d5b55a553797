"""What vpatch promises for site-packages while nothing goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from vpatch.tree.locate import Tree

from tests.conftest import contents_of, unchanged
from tests.tiers import deep
from tests.tree.conftest import COMPANION, INFO, MODULE, RECORD, Sandbox, change, edited, settled, untrue


def test_apply(sandbox: Sandbox) -> None:
    assert sandbox.settle(sandbox.first) == tuple(sorted([*sandbox.first, RECORD]))

    assert {path: (sandbox.root / path).read_bytes() for path in sandbox.first} == sandbox.first
    untouched = sandbox.modules.keys() - sandbox.first.keys()
    assert {(sandbox.root / path).read_bytes() == sandbox.modules[path] for path in untouched} == {True}
    assert untrue(sandbox.tree, [*sandbox.modules, *sandbox.first]) == []
    assert edited(sandbox.tree) == ()


def test_revert_gives_everything_back(sandbox: Sandbox) -> None:
    pristine = sandbox.snapshot()
    sandbox.settle(sandbox.first)

    assert sandbox.settle({}) == tuple(sorted([*sandbox.first, RECORD]))
    assert sandbox.snapshot() == pristine
    assert sandbox.settle({}) == ()


@pytest.mark.parametrize(
    "content", [b"", b"a.py,,", b"vllm/engine/m0.py,,\r\n\r\n", b'"vllm/engine/m0.py",sha384=x,7\nb.py,,\n\n']
)
def test_revert_gives_any_record_back(sandbox: Sandbox, content: bytes) -> None:
    """Before vpatch, RECORD need not be true, nor be written as vpatch writes it."""
    sandbox.write(RECORD, content)
    pristine = sandbox.snapshot()
    sandbox.settle(sandbox.first)
    assert untrue(sandbox.tree, sandbox.first) == []
    sandbox.settle(sandbox.second)

    sandbox.settle({})

    assert sandbox.snapshot() == pristine


def test_rows_keep_their_place_and_others_rows_stay(sandbox: Sandbox) -> None:
    before = (sandbox.root / RECORD).read_bytes().splitlines()
    sandbox.settle(sandbox.first)
    after = (sandbox.root / RECORD).read_bytes().splitlines()
    assert [line.split(b",")[0] for line in after[: len(before)]] == [line.split(b",")[0] for line in before]
    with (sandbox.root / RECORD).open("ab") as file:
        file.write(b"vllm/added.py,,\n")

    sandbox.settle({})

    assert (sandbox.root / RECORD).read_bytes().splitlines() == [*before, b"vllm/added.py,,"]


def test_a_changed_note_is_written(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)

    assert not settled(sandbox.tree, sandbox.first, {"overlays": ["other"]})
    assert change(sandbox.tree, sandbox.first, {"overlays": ["other"]}) == (RECORD,)
    assert settled(sandbox.tree, sandbox.first, {"overlays": ["other"]})


def test_desired_bytes_that_are_there_already(sandbox: Sandbox) -> None:
    with unchanged(sandbox.root):
        assert sandbox.settle({MODULE: sandbox.modules[MODULE]}) == ()


def test_every_write_makes_a_new_inode(sandbox: Sandbox, public: Path) -> None:
    """Files may be hard links to uv's cache."""
    cache, before = sandbox.copy(public / "cache"), sandbox.snapshot()
    sandbox.settle(sandbox.first)
    assert cache.snapshot() == before
    other, applied = sandbox.copy(public / "other"), sandbox.snapshot()
    sandbox.settle({})

    assert (cache.snapshot(), other.snapshot()) == (before, applied)


def test_modes_and_owners_stay(sandbox: Sandbox) -> None:
    (sandbox.root / MODULE).chmod(0o750)
    (sandbox.root / RECORD).chmod(0o664)
    sandbox.root.joinpath(INFO).chmod(0o775)
    owner = 4321 if os.getuid() == 0 else os.getuid()
    os.chown(sandbox.root / MODULE, owner, -1)
    old = os.umask(0o077)
    try:
        sandbox.settle(sandbox.first)
    finally:
        os.umask(old)

    assert (sandbox.root / MODULE).stat().st_uid == owner
    assert {
        path: (sandbox.root / path).stat().st_mode & 0o7777
        for path in (MODULE, RECORD, COMPANION, "vllm/_vpatch", f"{INFO}/vpatch/provenance.json", f"{INFO}/vpatch")
    } == {
        MODULE: 0o750,
        RECORD: 0o664,
        COMPANION: 0o664,
        "vllm/_vpatch": 0o775,
        f"{INFO}/vpatch/provenance.json": 0o664,
        f"{INFO}/vpatch": 0o775,
    }


def test_bytecode_of_added_modules_goes_with_them(sandbox: Sandbox) -> None:
    pristine = sandbox.snapshot()
    sandbox.settle(sandbox.first)
    for name in ("first.cpython-312.pyc", "gone.cpython-312.pyc"):
        sandbox.write(f"vllm/_vpatch/__pycache__/{name}", b"")
        sandbox.write(f"vllm/mine/__pycache__/{name}", b"")
    sandbox.write("vllm/engine/__pycache__/added.cpython-312.pyc", b"")

    sandbox.settle({})

    assert sandbox.snapshot() == pristine


@pytest.mark.parametrize("folder", ["vllm/_vpatch", "vllm/mine", "vllm/mine/deep"])
@pytest.mark.parametrize("name", ["notes.txt", "sourceless.pyc"])
def test_a_users_file_among_added_modules_stays(sandbox: Sandbox, folder: str, name: str) -> None:
    pristine = sandbox.snapshot()
    sandbox.settle(sandbox.first)
    sandbox.write(f"{folder}/{name}", b"mine")

    sandbox.settle({})

    above = {folder: None} if folder != "vllm/mine/deep" else {"vllm/mine": None, folder: None}
    assert sandbox.snapshot() == {**pristine, **above, f"{folder}/{name}": b"mine"}


@pytest.mark.parametrize("folder", ["vllm/mine", "vllm/mine/deep"])
def test_a_folder_that_was_there_stays(sandbox: Sandbox, folder: str) -> None:
    (sandbox.root / folder).mkdir(parents=True)
    before = sandbox.snapshot()

    sandbox.settle(sandbox.first)
    sandbox.settle(sandbox.second)
    sandbox.settle({})

    assert sandbox.snapshot() == before


def test_foreign_files_in_the_folder_of_originals_are_removed(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)
    before = sandbox.snapshot()
    sandbox.write(f"{INFO}/vpatch/stray/file", b"")
    sandbox.write(f"{INFO}/vpatch/stray.txt", b"")
    sandbox.write("vllm/engine/.m1.py.vpatch-new", b"half")

    assert not sandbox.settled(sandbox.first)
    assert sandbox.settle(sandbox.first) == ()
    assert sandbox.snapshot() == before


def test_a_staged_file_of_an_older_run_does_not_matter(sandbox: Sandbox, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"untouched")
    (sandbox.root / "vllm/engine/.m0.py.vpatch-new").symlink_to(other)
    sandbox.write("vllm/engine/.m1.py.vpatch-new", b"half")

    sandbox.settle(sandbox.first)

    assert other.read_bytes() == b"untouched"
    assert not list(sandbox.root.rglob("*.vpatch-new"))


def test_record_problems(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)
    sandbox.write(MODULE, b"edited\n")
    sandbox.write("vllm/new.py", b"")
    sandbox.write(f"{INFO}/vpatch/originals/{MODULE}", b"edited\n")
    (sandbox.root / COMPANION).unlink()

    assert untrue(sandbox.tree, [*sandbox.first, "vllm/new.py"]) == [
        ("untrue", f"{INFO}/vpatch/originals/{MODULE}"),
        ("missing", COMPANION),
        ("untrue", MODULE),
        ("unlisted", "vllm/new.py"),
    ]


@pytest.mark.parametrize("installer", ["uv", deep("pip")])
def test_uninstalling_removes_all_of_it(sandbox: Sandbox, tmp_path: Path, installer: str) -> None:
    wheel = tmp_path / "vllm-1.0-py3-none-any.whl"
    about = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(wheel, "w") as file:
        for path, content in {**sandbox.snapshot(), f"{INFO}/WHEEL": about}.items():
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
    cache = tmp_path / "cache"  # of hard links, as all environments of a user share them
    link: list[str | Path] = ["--link-mode", "hardlink", "--cache-dir", cache] if installer == "uv" else []
    subprocess.run([*manage, "install", "-q", *target, *link, "--no-index", "--no-deps", wheel], check=True)
    root = next(venv.glob("lib/python*/site-packages")).resolve()
    shared = contents_of(cache)
    assert installer == "pip" or (root / MODULE).stat().st_nlink > 1
    installed = type(sandbox)(Tree(root, INFO, "1.0"), sandbox.first, sandbox.second, sandbox.modules)
    installed.settle(sandbox.first)
    installed.settle(sandbox.second)
    subprocess.run([python, "-c", "import vllm._vpatch.first, vllm.engine.m0"], check=True)
    assert untrue(installed.tree, sandbox.second) == []

    yes = [] if installer == "uv" else ["-y"]
    subprocess.run([*manage, "uninstall", "-q", *target, *yes, "vllm"], check=True)

    assert not list(root.glob("vllm*"))
    assert contents_of(cache) == shared
