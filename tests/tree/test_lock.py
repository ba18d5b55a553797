"""The lock of a tree, on one host and on a file system that several hosts share (its type is all that is injected)."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vpatch.errors import Failure
from vpatch.tree import mounts, writer
from vpatch.tree.lock import locked

if TYPE_CHECKING:
    from tests.tree.conftest import Forked, Tree

METADATA = "vllm-1.0.dist-info/METADATA"


@pytest.fixture(params=["nfs4", "cifs", "fuse.glusterfs"])
def remote(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(mounts, "type_of", lambda file: request.param)
    return str(request.param)


@contextmanager
def another_host(tree: Tree) -> Iterator[None]:
    """What a run on another host holds: of its lock on the folder, this host learns nothing."""
    file = os.open(tree.root / METADATA, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


@pytest.mark.usefixtures("remote")
def test_another_host_at_work(tree: Tree) -> None:
    says = rf"another vpatch is at work: {tree.root}: it did not end in 0.1 seconds"
    with another_host(tree), pytest.raises(Failure, match=says), writer.lock(tree.site, patience=0.1):
        pass

    with writer.lock(tree.site, patience=0), pytest.raises(Failure, match=says), writer.lock(tree.site, patience=0.1):
        pass
    tree.settle(tree.first)


@pytest.mark.usefixtures("remote")
def test_a_killed_run_leaves_no_lock(tree: Tree, forked: Forked) -> None:
    before = tree.snapshot()

    def run() -> None:
        with writer.lock(tree.site):
            os.kill(os.getpid(), signal.SIGKILL)

    assert forked(run) == signal.SIGKILL
    with writer.lock(tree.site, patience=0):
        assert tree.snapshot() == before
    assert tree.snapshot() == before


def test_environments_that_share_a_file_do_not_wait_for_each_other(tree: Tree, public: Path) -> None:
    """On one host the folder is enough, and METADATA may be one file in all of them."""
    other = tree.copy(public / "other")

    with another_host(tree), writer.lock(tree.site, patience=0), writer.lock(other.site, patience=0):
        pass


def test_what_cannot_be_locked_is_named(tree: Tree, remote: str) -> None:
    (tree.root / METADATA).unlink()

    says = rf"cannot lock: .*/{METADATA}: no such file or directory; on this file system \({remote}\) it keeps other"
    with pytest.raises(Failure, match=says):
        tree.settle(tree.first)


@pytest.mark.usefixtures("remote")
def test_a_checkout_has_a_file_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path, tmp_path, "vpatch.lock", os.O_RDWR | os.O_CREAT, patience=0):
            assert (tmp_path / "vpatch.lock").stat().st_size == 0


def test_the_type_of_a_file_system() -> None:
    with Path("/proc/self/stat").open() as file:
        assert mounts.type_of(file.fileno()) == "proc"
    assert mounts.type_of(10_000) is None
    assert mounts.number(10_000) is None


def test_a_system_that_does_not_tell(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_text(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", read_text)
    assert mounts.type_of(0) is None
    assert tree.settle(tree.first)
