"""Real disks, real owners, real processes."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vpatch.errors import Failure
from vpatch.tree import writer

if TYPE_CHECKING:
    from tests.tree.conftest import Forked, Tree

NOBODY = 65534


def test_a_file_size_limit(tree: Tree, forked: Forked) -> None:
    """A disk that is full in the middle of a write, as every user can make one."""
    before = tree.snapshot()

    def run() -> None:
        limit = len(tree.first["vllm/layers/m2.py"]) // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(Failure, match=r"cannot write: vllm/layers/m2.py: file too large"):
            tree.settle(tree.first)

    assert forked(run) == 0
    assert tree.snapshot() == before
    assert tree.settle(tree.first)


def test_a_full_disk(public: Path, tree: Tree) -> None:
    disk = public / "disk"
    disk.mkdir()
    mount: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        shutil.copytree(tree.root, disk / "site")
        tree = replace(tree, site=replace(tree.site, root=disk / "site"))
        before = tree.snapshot()
        space = os.statvfs(disk)
        (disk / "ballast").write_bytes(bytes(space.f_bavail * space.f_bsize - 40_000))

        with pytest.raises(Failure, match="no space left on device"):
            tree.settle(tree.first)
        assert tree.snapshot() == before
        (disk / "ballast").unlink()
        assert tree.settle(tree.first)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_folders_that_another_user_may_not_write(tree: Tree, forked: Forked) -> None:
    before = tree.snapshot()

    def run() -> None:
        with pytest.raises(Failure) as failure:
            tree.settle(tree.first)
        assert [problem.where for problem in failure.value.problems] == [
            *sorted(path for path in tree.first if path.startswith("vllm/engine/"))
        ]
        assert {problem.cause for problem in failure.value.problems} == {"permission denied to write in its folder"}

    for path in [tree.root, *tree.root.rglob("*")]:
        os.chown(path, NOBODY, NOBODY) if os.getuid() == 0 else None
    (tree.root / "vllm/engine").chmod(0o555)

    assert forked(run, NOBODY) == 0
    assert tree.snapshot() == before
    (tree.root / "vllm/engine").chmod(0o755)
    assert forked(lambda: tree.settle(tree.first), NOBODY) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs another owner's files")
def test_files_of_another_owner(tree: Tree, forked: Forked) -> None:
    before = tree.snapshot()

    def run() -> None:
        with pytest.raises(Failure, match=r"cannot write: vllm/engine/m0.py: its owner or mode cannot be kept"):
            tree.settle(tree.first)

    for path in [tree.root, *tree.root.rglob("*")]:
        if path.name != "m0.py":
            os.chown(path, NOBODY, NOBODY)

    assert forked(run, NOBODY) == 0
    assert tree.snapshot() == before


@pytest.mark.skipif(os.getuid() != 0, reason="root may write anywhere: needs root to become another user")
def test_settled_needs_no_right_to_write(tree: Tree, forked: Forked) -> None:
    tree.settle(tree.first)

    def run() -> None:
        assert tree.settle(tree.first) == ()
        with pytest.raises(Failure, match=r"cannot write: vllm-1.0.dist-info/vpatch: permission denied"):
            tree.settle(tree.second)

    assert forked(run, NOBODY) == 0


def test_eight_at_once(tree: Tree, public: Path) -> None:
    alone = tree.copy(public / "alone")
    alone.settle(alone.first)
    read, write = os.pipe()
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            try:
                os.close(write)
                os.read(read, 1)  # until all of them are there
                os._exit(10 if tree.settle(tree.first) else 0)
            except BaseException as error:
                os.write(2, str(error).encode())
                os._exit(1)
        children.append(child)
    os.close(write)
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    os.close(read)

    assert codes == [0] * 7 + [10]
    assert tree.snapshot() == alone.snapshot()


def test_another_at_work(tree: Tree) -> None:
    with (
        writer.lock(tree.site),
        pytest.raises(Failure, match=r"another vpatch is at work: .*: it did not end in 0.1 seconds"),
        writer.lock(tree.site, patience=0.1),
    ):
        pass


def test_the_lock_leaves_nothing(tree: Tree) -> None:
    before = tree.snapshot()
    with writer.lock(tree.site):
        assert tree.snapshot() == before

    with writer.lock(tree.site, patience=0):
        pass
