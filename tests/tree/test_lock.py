"""The lock of a tree, on one host and on a file system that several hosts share; only the type of that is injected."""

from __future__ import annotations

import fcntl
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.tree import guard as module
from vpatch.tree.guard import file_system, lock, locked, mount

from tests.conftest import unchanged
from tests.tree.conftest import INFO, Sandbox, in_a_child

METADATA = f"{INFO}/METADATA"


@pytest.fixture(params=["nfs4", "cifs", "fuse.glusterfs"])
def remote(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "file_system", lambda file: request.param)
    return str(request.param)


@contextmanager
def another_host(sandbox: Sandbox) -> Iterator[None]:
    """Hold what a run on another host holds: this host does not see its lock on the folder."""
    file = os.open(sandbox.root / METADATA, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


@pytest.mark.usefixtures("remote")
def test_another_host_at_work(sandbox: Sandbox) -> None:
    says = rf"another vpatch is at work: {sandbox.root}: it did not end in 0.1 seconds"
    with another_host(sandbox), pytest.raises(Failure, match=says), lock(sandbox.tree, patience=0.1):
        pass

    with lock(sandbox.tree, patience=0), pytest.raises(Failure, match=says), lock(sandbox.tree, patience=0.1):
        pass
    sandbox.settle(sandbox.first)


@pytest.mark.usefixtures("remote")
def test_a_killed_run_leaves_no_lock(sandbox: Sandbox) -> None:
    before = sandbox.snapshot()

    def run() -> None:
        with lock(sandbox.tree):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(run) == signal.SIGKILL
    with lock(sandbox.tree, patience=0):
        assert sandbox.snapshot() == before
    assert sandbox.snapshot() == before


def test_environments_that_share_a_file_do_not_wait_for_each_other(sandbox: Sandbox, public: Path) -> None:
    """On one host the folder's lock is enough, and METADATA may be one file in all of the trees."""
    other = sandbox.copy(public / "other")

    with another_host(sandbox), lock(sandbox.tree, patience=0), lock(other.tree, patience=0):
        pass


def test_what_cannot_be_locked_is_named(sandbox: Sandbox, remote: str) -> None:
    (sandbox.root / METADATA).unlink()

    says = rf"cannot lock: .*/{METADATA}: no such file or directory; on this file system \({remote}\) it keeps other"
    assert re.search(says, str(sandbox.refused(sandbox.first)))


@pytest.mark.usefixtures("remote")
def test_a_checkout_has_a_file_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path, tmp_path, "vpatch.lock", os.O_RDWR | os.O_CREAT, patience=0):
            assert (tmp_path / "vpatch.lock").stat().st_size == 0


def test_the_type_of_a_file_system() -> None:
    with Path("/proc/self/stat").open() as file:
        assert file_system(file.fileno()) == "proc"
    assert file_system(10_000) is None
    assert mount(10_000) is None


def test_a_system_that_does_not_tell(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_text(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", read_text)
    assert file_system(0) is None
    assert sandbox.settle(sandbox.first)


def test_the_lock_leaves_nothing(sandbox: Sandbox) -> None:
    with unchanged(sandbox.root), lock(sandbox.tree), unchanged(sandbox.root):
        pass

    with lock(sandbox.tree, patience=0):
        pass
