"""A fetch that is interrupted or killed leaves no partial tree; two fetches at once do not collide."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.release.fetch import fetch

from tests.loopback import IndexServer
from tests.processes import PATIENCE, UNWATCHED
from tests.release.conftest import files_of

CHILD = """
import os, select, signal, sys
from pathlib import Path
from vpatch.release.fetch import fetch
real, written = os.utime, []
woken, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)  # so that a signal just before the wait ends it, too
def utime(path, times):
    real(path, times)
    written.append(path)
    if len(written) == int(sys.argv[2]):
        print("writing", flush=True)
        select.select([woken], [], [])
os.utime = utime
fetch("1.0", Path(sys.argv[1]))
"""


def start(target: Path, stop_after: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(target), str(stop_after)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **UNWATCHED, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def writing(child: subprocess.Popen[str]) -> bool:
    """Wait until the child has written a file."""
    assert child.stdout
    return child.stdout.readline() == "writing\n"


def interrupt(child: subprocess.Popen[str], number: signal.Signals) -> str:
    child.send_signal(number)
    _, errors = child.communicate(timeout=PATIENCE)
    assert child.returncode == -number
    return errors


@pytest.mark.usefixtures("heeding_interrupts")
@pytest.mark.parametrize("where", ["writing", "reading"])
def test_an_interrupt_leaves_nothing_behind(index: IndexServer, tmp_path: Path, where: str) -> None:
    before = sorted(tmp_path.iterdir())
    index.stalls = "/files/" if where == "reading" else ""
    child = start(tmp_path / "new/tree", 3)
    assert index.stalled.wait(PATIENCE) if where == "reading" else writing(child)
    assert len(list((tmp_path / "new").glob(".tree.vpatch-*"))) == 1

    errors = interrupt(child, signal.SIGINT)

    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert sorted(tmp_path.iterdir()) == before


def test_the_next_fetch_removes_what_a_killed_one_left(index: IndexServer, tmp_path: Path) -> None:
    child = start(tmp_path / "tree", 3)
    assert writing(child)
    interrupt(child, signal.SIGKILL)
    assert not (tmp_path / "tree").exists()
    assert len(list(tmp_path.glob(".tree.vpatch-*"))) == 1
    (tmp_path / ".tree.vpatch-mine").mkdir()

    fetch("1.0", tmp_path / "tree")

    assert files_of(tmp_path / "tree") == index.wanted()
    assert [path.name for path in tmp_path.glob(".tree.vpatch-*")] == [".tree.vpatch-mine"]


def test_two_fetches_of_one_target_give_one_result(index: IndexServer, tmp_path: Path) -> None:
    began: list[bool] = []

    def slowly(*_: int) -> None:
        if not began:
            began.append(True)
            fetch("1.0", tmp_path / "tree")  # another fetch, which must not remove the folder of this one
            assert len(list(tmp_path.glob(".tree.vpatch-*"))) == 1

    with pytest.raises(Failure, match=r"tree: directory not empty$"):
        fetch("1.0", tmp_path / "tree", progress=slowly)

    assert files_of(tmp_path / "tree") == index.wanted()
    assert not list(tmp_path.glob(".*"))
