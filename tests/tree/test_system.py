"""Real disks, owners and processes."""

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
from vpatch.tree.guard import lock

if TYPE_CHECKING:
    from tests.tree.conftest import Forked, Sandbox

NOBODY = 65534


def test_a_file_size_limit(sandbox: Sandbox, forked: Forked) -> None:
    """A write that fails in the middle, as on a full disk."""
    before = sandbox.snapshot()

    def run() -> None:
        limit = len(sandbox.first["vllm/layers/m2.py"]) // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(Failure, match=r"cannot write: vllm/layers/m2.py: file too large"):
            sandbox.settle(sandbox.first)

    assert forked(run) == 0
    assert sandbox.snapshot() == before
    assert sandbox.settle(sandbox.first)


def test_a_full_disk(public: Path, sandbox: Sandbox) -> None:
    disk = public / "disk"
    disk.mkdir()
    mount: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        shutil.copytree(sandbox.root, disk / "site")
        sandbox = replace(sandbox, tree=replace(sandbox.tree, root=disk / "site"))
        before = sandbox.snapshot()
        space = os.statvfs(disk)
        (disk / "ballast").write_bytes(bytes(space.f_bavail * space.f_bsize - 40_000))

        with pytest.raises(Failure, match="no space left on device"):
            sandbox.settle(sandbox.first)
        assert sandbox.snapshot() == before
        (disk / "ballast").unlink()
        assert sandbox.settle(sandbox.first)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_folders_that_another_user_may_not_write(sandbox: Sandbox, forked: Forked) -> None:
    before = sandbox.snapshot()

    def run() -> None:
        with pytest.raises(Failure) as failure:
            sandbox.settle(sandbox.first)
        assert [problem.where for problem in failure.value.problems] == [
            *sorted(path for path in sandbox.first if path.startswith("vllm/engine/"))
        ]
        assert {problem.cause for problem in failure.value.problems} == {"permission denied to write in its folder"}

    for path in [sandbox.root, *sandbox.root.rglob("*")]:
        os.chown(path, NOBODY, NOBODY) if os.getuid() == 0 else None
    (sandbox.root / "vllm/engine").chmod(0o555)

    assert forked(run, NOBODY) == 0
    assert sandbox.snapshot() == before
    (sandbox.root / "vllm/engine").chmod(0o755)
    assert forked(lambda: sandbox.settle(sandbox.first), NOBODY) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs another owner's files")
def test_files_of_another_owner(sandbox: Sandbox, forked: Forked) -> None:
    before = sandbox.snapshot()

    def run() -> None:
        with pytest.raises(Failure, match=r"cannot write: vllm/engine/m0.py: its owner or mode cannot be kept"):
            sandbox.settle(sandbox.first)

    for path in [sandbox.root, *sandbox.root.rglob("*")]:
        if path.name != "m0.py":
            os.chown(path, NOBODY, NOBODY)

    assert forked(run, NOBODY) == 0
    assert sandbox.snapshot() == before


@pytest.mark.skipif(os.getuid() != 0, reason="root may write anywhere: needs root to become another user")
def test_settled_needs_no_right_to_write(sandbox: Sandbox, forked: Forked) -> None:
    sandbox.settle(sandbox.first)

    def run() -> None:
        assert sandbox.settle(sandbox.first) == ()
        with pytest.raises(Failure, match=r"cannot write: vllm-1.0.dist-info/vpatch: permission denied"):
            sandbox.settle(sandbox.second)

    assert forked(run, NOBODY) == 0


def test_eight_at_once(sandbox: Sandbox, public: Path) -> None:
    alone = sandbox.copy(public / "alone")
    alone.settle(alone.first)
    read, write = os.pipe()
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            try:
                os.close(write)
                os.read(read, 1)  # until all of them are there
                os._exit(10 if sandbox.settle(sandbox.first) else 0)
            except BaseException as error:
                os.write(2, str(error).encode())
                os._exit(1)
        children.append(child)
    os.close(write)
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    os.close(read)

    assert codes == [0] * 7 + [10]
    assert sandbox.snapshot() == alone.snapshot()


def test_another_at_work(sandbox: Sandbox) -> None:
    with (
        lock(sandbox.tree),
        pytest.raises(Failure, match=r"another vpatch is at work: .*: it did not end in 0.1 seconds"),
        lock(sandbox.tree, patience=0.1),
    ):
        pass


def test_the_lock_leaves_nothing(sandbox: Sandbox) -> None:
    before = sandbox.snapshot()
    with lock(sandbox.tree):
        assert sandbox.snapshot() == before

    with lock(sandbox.tree, patience=0):
        pass
