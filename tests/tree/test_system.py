"""Real disks, owners and processes."""

from __future__ import annotations

import os
import resource

import pytest
from vpatch.errors import Failure
from vpatch.tree.guard import lock

from tests.conftest import unchanged
from tests.needs import root_only
from tests.tree.conftest import MODULE, Sandbox, another_user, give_away, in_a_child


def test_a_file_size_limit(sandbox: Sandbox) -> None:
    """A write that fails in the middle, as on a full disk."""

    def run() -> None:
        limit = len(sandbox.first["vllm/layers/m2.py"]) // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
        with pytest.raises(Failure, match=r"cannot write: vllm/layers/m2.py: file too large"):
            sandbox.settle(sandbox.first)
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))  # for coverage's own file

    with unchanged(sandbox.root):
        assert in_a_child(run) == 0
    assert sandbox.settle(sandbox.first)


@root_only
def test_files_of_another_owner(sandbox: Sandbox) -> None:
    give_away(sandbox.root)
    os.chown(sandbox.root / MODULE, 0, 0)

    with another_user():
        assert f"cannot write: {MODULE}: its owner or mode cannot be kept" in str(sandbox.refused(sandbox.first))


def test_the_lock_leaves_nothing(sandbox: Sandbox) -> None:
    with unchanged(sandbox.root), lock(sandbox.tree), unchanged(sandbox.root):
        pass

    with lock(sandbox.tree, patience=0):
        pass
