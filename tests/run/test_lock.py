"""No farm is removed between a start's look at it and the command, and a start waits for a removal."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from vpatch.core.catalogue import Selection
from vpatch.errors import Failure
from vpatch.run.command import Command
from vpatch.run.content import Content
from vpatch.run.launch import prepare
from vpatch.run.store import held_farm
from vpatch.run.upkeep import MEMOS, MOST, Held, alone, clear, farms, prune, remove, share

from tests.processes import printed
from tests.run.conftest import Installed
from tests.run.test_upkeep import made

LOCK = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked")
"""
PYTHON = Path(sys.executable)


@pytest.fixture
def content(tmp_path: Path) -> Content:
    """Of a farm that is made quickly."""
    (tmp_path / "site/vllm").mkdir(parents=True)
    return Content(tmp_path / "site", (), {"vllm/a.py": b""})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "cache/run"


@pytest.fixture
def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks."""

    def refuse(*_: Any) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_farm_stays_while_a_start_goes_on(content: Content, store: Path) -> None:
    farm, lock = held_farm(content, store, PYTHON)
    assert lock is not None
    (store / MEMOS).mkdir()
    (store / MEMOS / "a.json").touch()
    kept = clear(store)

    assert (kept.removed, [one.folder for one in kept.left]) == ((), [farm])
    assert kept.obstacle == "a command is being started with one; try again"
    assert (store / MEMOS / "a.json").exists()
    os.close(lock)
    assert [one.folder for one in clear(store).removed] == [farm]


def test_nothing_is_pruned_while_another_start_goes_on(store: Path) -> None:
    for number in range(MOST + 1):
        made(store, number)
    lock = share(store)
    assert lock is not None

    assert prune(store) == []
    os.close(lock)
    assert len(prune(store)) == 2


def test_a_command_that_is_ready_keeps_its_farm(installed: Installed) -> None:
    """Until it is the program: the descriptor is closed then."""
    command = Command(installed.python, installed.python, None)
    launch = prepare(command, Selection(only=("turboquant-skip-list",)), installed.python, installed.cache)
    assert launch.lock is not None
    kept = clear(installed.cache)
    os.close(launch.lock)

    assert [farm.folder for farm in kept.left] == [launch.farm]


def test_the_command_holds_no_lock(store: Path) -> None:
    store.mkdir(parents=True)
    become = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', *sys.argv[2:]])"
    code = f"from vpatch.run.upkeep import share; import sys; assert share(sys.argv[1]) is not None; {become}"

    assert printed(code, str(store), LOCK, str(store)) == "locked\n"


def test_a_start_waits_until_farms_are_removed(content: Content, store: Path) -> None:
    farm, lock = held_farm(content, store, PYTHON)
    assert lock is not None
    os.close(lock)
    there = list[bool]()

    def start() -> None:
        held = share(store)
        there.append(farm.exists())
        assert held is not None
        os.close(held)

    run = Thread(target=start)
    with alone(store) as held:
        assert held is Held.ALONE
        run.start()
        remove(farm)
    run.join()

    assert there == [False]


def test_a_start_that_fails_holds_nothing(content: Content, store: Path) -> None:
    farm, lock = held_farm(content, store, PYTHON)
    assert lock is not None
    os.close(lock)
    (farm / "vllm/a.py").write_bytes(b"changed")
    with pytest.raises(Failure, match="farm changed"):
        held_farm(content, store, PYTHON)
    with alone(store) as held:
        assert held is Held.ALONE


@pytest.mark.usefixtures("unlocked")
def test_without_locks_what_was_started_from_just_now_stays(content: Content, store: Path) -> None:
    farm, lock = held_farm(content, store, PYTHON)
    old = made(store, 1)
    kept = clear(store)

    assert lock is None
    assert ([one.folder for one in kept.removed], [one.folder for one in kept.left]) == ([old], [farm])
    assert kept.obstacle.startswith("the file system has no locks, and one was started from less than a minute ago")
    os.utime(farm, (1, 1))
    assert held_farm(content, store, PYTHON) == (farm, None)
    assert clear(store).removed == ()
    assert [one.folder for one in farms(store)] == [farm]
