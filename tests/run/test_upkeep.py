"""Old farms go when there are many, and never one that a process runs from, or that a start has looked at."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from unittest.mock import Mock

import pytest
import vpatch.processes
from vpatch.core.catalogue import Selection
from vpatch.errors import Failure
from vpatch.guest.vpatch_receipt import MANIFEST
from vpatch.run import upkeep
from vpatch.run.command import Command
from vpatch.run.content import Content
from vpatch.run.launch import prepare
from vpatch.run.store import farm_of, held_farm
from vpatch.run.upkeep import IDLE_S, MEMOS, MOST, MOST_BYTES, Held, alone, clear, farms, prune, remove, share

from tests.processes import printed
from tests.run.conftest import Installed
from tests.run.standin import Farm

HOLD = "import sys; held = open(sys.argv[1]) if sys.argv[1:] else 0; print(flush=True); sys.stdin.read()"
LOCK = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked")
"""
PYTHON = Path(sys.executable)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A folder with as many farms as there may be, and so without room for another, all of them old."""
    for number in range(MOST):
        made(tmp_path / "run", number)
    return tmp_path / "run"


def made(store: Path, number: int, days: float = 60) -> Path:
    """Make a farm that was not used for some days, and a bit longer the higher its number is."""
    farm = store / f"{number:016x}"
    (farm / "vllm").mkdir(parents=True)
    (farm / "vllm/link").symlink_to("/usr")
    (farm / MANIFEST).write_text(f'{{"digest": "{number:064x}"}}')
    then = time.time() - days * 86400 - number
    os.utime(farm, (then, then))
    return farm


@contextmanager
def process(*arguments: str | Path, **environment: str) -> Iterator[int]:
    """Run a process that opens a file, with variables; yield its id."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLD, *arguments], stdin=pipe, stdout=pipe, env=environment) as run:
        assert run.stdout
        assert run.stdin
        run.stdout.readline()
        yield run.pid
        run.stdin.close()


@pytest.mark.deep
def test_the_one_that_was_used_longest_ago_goes(store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """But not while another start goes on, nor on macOS, where nobody can know what processes run from."""
    before, lock = farms(store), share(store)
    assert lock is not None
    assert prune(store) == []
    os.close(lock)
    with monkeypatch.context() as patched:
        patched.setattr(vpatch.processes, "PROC", tmp_path / "proc")
        assert prune(store) == []
        kept = clear(store)
    assert (kept.removed, kept.left) == ((), tuple(before))

    assert prune(store) == [before[-1]]
    assert before[-1].folder == store / f"{MOST - 1:016x}"
    assert [path.name for path in sorted(store.iterdir())] == [f"{number:016x}" for number in range(MOST - 1)]
    assert prune(store) == []


def test_bounds(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sizes, of memos, and of time: what was used within a month stays."""
    for number in range(MOST + 3):
        made(tmp_path / "young", number, days=29)
    (store / MEMOS).mkdir()
    for number in range(MOST + 2):
        (store / f"{MEMOS}/{number}.json").touch()
        os.utime(store / f"{MEMOS}/{number}.json", (number, number))
    monkeypatch.setattr(upkeep, "MOST_BYTES", sum(farm.bytes for farm in farms(store)[:3]))

    assert prune(tmp_path / "young") == []
    assert len(prune(store)) == MOST - 3
    assert {path.stem for path in (store / MEMOS).iterdir()} == {str(number) for number in range(2, MOST + 2)}
    assert (IDLE_S, MOST_BYTES > 10_000_000) == (30 * 86400, True)


def test_what_processes_run_from_stays(store: Path, tmp_path: Path) -> None:
    """What they hold open, as receipts of an earlier vpatch did, or import from; by whatever name.

    As in a container that mounts the cache elsewhere, or if a folder on the way is a link.
    """
    (tmp_path / "link").symlink_to(store)
    (tmp_path / "mounted").mkdir()
    os.link(store / f"{1:016x}" / MANIFEST, tmp_path / "mounted" / MANIFEST)
    oldest = store / f"{MOST - 1:016x}"
    with (
        process(tmp_path / "mounted" / MANIFEST) as held,
        process(PYTHONPATH=f"{tmp_path}/link/{2:016x}") as linked,
        process(PYTHONPATH=f"{oldest}:/elsewhere") as imported,
        process(OTHER=f"{3:016x}"),
    ):
        used = {farm.folder.name: farm.processes for farm in farms(tmp_path / "link") if farm.processes}
        assert used == {f"{1:016x}": (held,), f"{2:016x}": (linked,), oldest.name: (imported,)}
        assert prune(store) == []
        kept = clear(store)
    assert {farm.folder.name for farm in kept.left} == used.keys()
    assert (len(kept.removed), kept.obstacle) == (MOST - 3, "")
    assert {path.name for path in store.iterdir()} == used.keys()


def test_so_does_what_a_receipt_names(farm: Farm) -> None:
    """Whatever became of the process's environment: a title may have overwritten it."""
    found = f"import sys\nsys.path[:0] = {[str(farm.path), str(farm.root)]!r}\n"
    with farm.serving(found, PYTHONPATH="") as server:
        assert [one.processes for one in farms(farm.path.parent)] == [(server,)]
        assert clear(farm.path.parent).removed == ()


def test_a_new_farm_removes_old_ones_and_a_used_one_is_young(small: Content, store: Path) -> None:
    farm, lock = held_farm(small, store, PYTHON)
    assert len(farms(store)) == MOST  # of the 17
    assert lock is not None
    os.close(lock)
    os.utime(farm, (1, 1))
    farm_of(small, store, PYTHON)

    assert farms(store)[0].folder == farm


def test_odd_folders(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a manifest, what is no farm, one that two remove, and one that cannot be read."""
    (store / f"{1:016x}" / MANIFEST).unlink()
    (store / "notes").mkdir()
    remove(store / f"{2:016x}")
    remove(store / f"{2:016x}")

    assert [farm.digest for farm in farms(store)].count("") == 1
    assert len(clear(store).removed) == MOST - 1
    assert list(store.iterdir()) == [store / "notes"]
    monkeypatch.setattr(Path, "iterdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(Failure, match=f"cannot read the farms: {store}: permission denied"):
        farms(store)


# --- between a start's look at its farm and the command -------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_a_farm_stays_while_a_start_goes_on(small: Content, tmp_path: Path) -> None:
    store = tmp_path / "run"
    farm, lock = held_farm(small, store, PYTHON)
    assert lock is not None
    (store / MEMOS).mkdir()
    (store / MEMOS / "a.json").touch()
    kept = clear(store)

    assert (kept.removed, [one.folder for one in kept.left]) == ((), [farm])
    assert kept.obstacle == "a command is being started with one; try again"
    assert (store / MEMOS / "a.json").exists()
    os.close(lock)
    assert [one.folder for one in clear(store).removed] == [farm]


def test_a_command_that_is_ready_keeps_its_farm(installed: Installed) -> None:
    """Until it is the program: the descriptor is closed then."""
    command = Command(installed.python, installed.python, None)
    launch = prepare(command, Selection(only=("turboquant-skip-list",)), installed.python, installed.cache)
    assert launch.lock is not None
    kept = clear(installed.cache)
    os.close(launch.lock)
    become = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', *sys.argv[2:]])"
    code = f"from vpatch.run.upkeep import share; import sys; assert share(sys.argv[1]) is not None; {become}"

    assert [farm.folder for farm in kept.left] == [launch.farm]
    assert printed(code, str(installed.cache), LOCK, str(installed.cache)) == "locked\n"


@pytest.mark.usefixtures("quick")
def test_a_start_waits_until_farms_are_removed(small: Content, tmp_path: Path) -> None:
    store = tmp_path / "run"
    farm = farm_of(small, store, PYTHON)
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


@pytest.mark.usefixtures("quick")
def test_a_start_that_fails_holds_nothing(small: Content, tmp_path: Path) -> None:
    store = tmp_path / "run"
    farm = farm_of(small, store, PYTHON)
    (farm / "vllm/_vpatch/new.py").write_bytes(b"changed")
    with pytest.raises(Failure, match="farm changed"):
        held_farm(small, store, PYTHON)
    with alone(store) as held:
        assert held is Held.ALONE


@pytest.mark.usefixtures("quick")
def test_without_locks_what_was_started_from_just_now_stays(
    small: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(9, "Bad file descriptor")))
    store = tmp_path / "run"
    farm, lock = held_farm(small, store, PYTHON)
    old = made(store, 1)
    kept = clear(store)

    assert lock is None
    assert ([one.folder for one in kept.removed], [one.folder for one in kept.left]) == ([old], [farm])
    assert kept.obstacle.startswith("the file system has no locks, and one was started from less than a minute ago")
    os.utime(farm, (1, 1))
    assert held_farm(small, store, PYTHON) == (farm, None)
    assert clear(store).removed == ()
