"""Old farms go when there are many, and never one that a process runs from."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import vpatch.processes
from vpatch.errors import Failure
from vpatch.guest.vpatch_receipt import MANIFEST
from vpatch.run import upkeep
from vpatch.run.content import Content
from vpatch.run.store import farm_of, held_farm
from vpatch.run.upkeep import IDLE_S, MOST, MOST_BYTES, clear, farms, prune, remove

from tests.run.standin import Farm

HOLD = "import sys; held = open(sys.argv[1]) if sys.argv[1:] else 0; print(flush=True); sys.stdin.read()"


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


def test_the_one_that_was_used_longest_ago_goes(store: Path) -> None:
    before = farms(store)
    gone = prune(store)

    assert gone == [before[-1]]
    assert before[-1].folder == store / f"{MOST - 1:016x}"
    assert [path.name for path in sorted(store.iterdir())] == [f"{number:016x}" for number in range(MOST - 1)]
    assert prune(store) == []


def test_the_size_is_bounded_too(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "MOST_BYTES", sum(farm.bytes for farm in farms(store)[:3]))

    assert len(prune(store)) == MOST - 3
    assert MOST_BYTES > 10_000_000


def test_what_was_used_within_a_month_stays(tmp_path: Path) -> None:
    for number in range(MOST + 3):
        made(tmp_path, number, days=29)

    assert prune(tmp_path) == []
    assert IDLE_S == 30 * 86400


def test_what_a_process_holds_open_stays(store: Path) -> None:
    """As the receipt of an earlier vpatch did in each process of vLLM."""
    oldest = store / f"{MOST - 1:016x}"
    with process(oldest / MANIFEST) as run:
        assert farms(store)[-1].processes == (run,)
        assert prune(store) == []
    assert [farm.folder for farm in prune(store)] == [oldest]


def test_so_does_what_a_receipt_names(farm: Farm) -> None:
    """Whatever became of the process's environment: a title may have overwritten it."""
    found = f"import sys\nsys.path[:0] = {[str(farm.path), str(farm.root)]!r}\n"
    with farm.serving(found, PYTHONPATH="") as server:
        assert [one.processes for one in farms(farm.path.parent)] == [(server,)]
        assert clear(farm.path.parent).removed == ()


def test_so_does_what_a_process_imports_from(store: Path) -> None:
    oldest = store / f"{MOST - 1:016x}"
    with process(PYTHONPATH=f"{oldest}:/elsewhere") as run, process(OTHER=str(oldest)):
        assert farms(store)[-1].processes == (run,)
        assert prune(store) == []


def test_a_farm_that_has_another_name_there_is_the_same(store: Path, tmp_path: Path) -> None:
    """As in a container that mounts the cache elsewhere, or if a folder on the way is a link."""
    (tmp_path / "link").symlink_to(store)
    (tmp_path / "mounted").mkdir()
    os.link(store / f"{1:016x}" / MANIFEST, tmp_path / "mounted" / MANIFEST)
    with process(tmp_path / "mounted" / MANIFEST) as held, process(PYTHONPATH=f"{tmp_path}/link/{2:016x}") as imported:
        found = {farm.digest: farm.processes for farm in farms(tmp_path / "link") if farm.processes}

    assert found == {f"{1:064x}": (held,), f"{2:064x}": (imported,)}


def test_without_proc_nothing_goes(store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On macOS, where nobody can know what processes run from."""
    monkeypatch.setattr(vpatch.processes, "PROC", tmp_path / "proc")

    assert prune(store) == []
    kept = clear(store)
    assert (kept.removed, kept.left) == ((), tuple(farms(store)))
    assert kept.obstacle.startswith("only Linux shows which processes run from them; ")
    assert [farm.processes for farm in farms(store)] == [()] * MOST


def test_memos_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "memos").mkdir()
    for number in range(MOST + 2):
        (tmp_path / f"memos/{number}.json").touch()
        os.utime(tmp_path / f"memos/{number}.json", (number, number))
    prune(tmp_path)

    assert {path.stem for path in (tmp_path / "memos").iterdir()} == {str(number) for number in range(2, MOST + 2)}


def test_a_new_farm_removes_old_ones_and_a_used_one_is_young(store: Path, tmp_path: Path) -> None:
    (tmp_path / "site/vllm").mkdir(parents=True)
    content = Content(tmp_path / "site", (), {"vllm/a.py": b""})
    farm, lock = held_farm(content, store, Path(sys.executable))
    assert len(farms(store)) == MOST  # of the 17
    assert lock is not None
    os.close(lock)
    os.utime(farm, (1, 1))
    farm_of(content, store, Path(sys.executable))

    assert farms(store)[0].folder == farm


def test_clearing_leaves_what_is_in_use(store: Path) -> None:
    first = store / f"{0:016x}"
    with process(first / MANIFEST):
        kept = clear(store)

    assert ([farm.folder for farm in kept.left], len(kept.removed), kept.obstacle) == ([first], MOST - 1, "")
    assert list(store.iterdir()) == [first]


def test_what_is_no_farm_stays(store: Path) -> None:
    (store / "notes").mkdir()
    clear(store)

    assert list(store.iterdir()) == [store / "notes"]


def test_a_farm_without_a_manifest_is_listed(tmp_path: Path) -> None:
    (made(tmp_path, 1) / MANIFEST).unlink()

    assert [farm.digest for farm in farms(tmp_path)] == [""]


def test_two_may_remove_one(store: Path) -> None:
    remove(store / f"{1:016x}")
    remove(store / f"{1:016x}")

    assert len(farms(store)) == MOST - 1


def test_a_folder_that_cannot_be_read_is_named(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(Failure, match=f"cannot read the farms: {store}: permission denied"):
        farms(store)
