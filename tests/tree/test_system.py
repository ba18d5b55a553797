"""Real disks, owners and processes."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.tree.guard import lock

from tests.needs import root_only
from tests.tree.conftest import NOBODY, Sandbox, another_user, in_a_child


def test_a_file_size_limit(sandbox: Sandbox) -> None:
    """A write that fails in the middle, as on a full disk."""
    before = sandbox.snapshot()

    def run() -> None:
        limit = len(sandbox.first["vllm/layers/m2.py"]) // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(Failure, match=r"cannot write: vllm/layers/m2.py: file too large"):
            sandbox.settle(sandbox.first)

    assert in_a_child(run) == 0
    assert sandbox.snapshot() == before
    assert sandbox.settle(sandbox.first)


def test_folders_that_another_user_may_not_write(sandbox: Sandbox) -> None:
    before = sandbox.snapshot()
    for path in [sandbox.root, *sandbox.root.rglob("*")]:
        os.chown(path, NOBODY, NOBODY) if os.getuid() == 0 else None
    (sandbox.root / "vllm/engine").chmod(0o555)

    with another_user(), pytest.raises(Failure) as failure:
        sandbox.settle(sandbox.first)

    assert [problem.where for problem in failure.value.problems] == [
        *sorted(path for path in sandbox.first if path.startswith("vllm/engine/"))
    ]
    assert {problem.cause for problem in failure.value.problems} == {"permission denied to write in its folder"}
    assert sandbox.snapshot() == before
    (sandbox.root / "vllm/engine").chmod(0o755)
    with another_user():
        sandbox.settle(sandbox.first)


@root_only
def test_files_of_another_owner(sandbox: Sandbox) -> None:
    before = sandbox.snapshot()
    for path in [sandbox.root, *sandbox.root.rglob("*")]:
        if path.name != "m0.py":
            os.chown(path, NOBODY, NOBODY)

    says = r"cannot write: vllm/engine/m0.py: its owner or mode cannot be kept"
    with another_user(), pytest.raises(Failure, match=says):
        sandbox.settle(sandbox.first)
    assert sandbox.snapshot() == before


@root_only
def test_settled_needs_no_right_to_write(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)

    with another_user():
        assert sandbox.settle(sandbox.first) == ()
        with pytest.raises(Failure, match=r"cannot write: vllm-1.0.dist-info/vpatch: permission denied"):
            sandbox.settle(sandbox.second)


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


def test_the_lock_leaves_nothing(sandbox: Sandbox) -> None:
    before = sandbox.snapshot()
    with lock(sandbox.tree):
        assert sandbox.snapshot() == before

    with lock(sandbox.tree, patience=0):
        pass
