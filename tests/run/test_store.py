"""Farms are made once and whole, compared before each use, and refused where others can write."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.guest.vpatch_receipt import MANIFEST
from vpatch.run.content import Content
from vpatch.run.store import LEFT_OVER_S, changes, farm_of, refuse_open
from vpatch.run.upkeep import STAGING

from tests.needs import root_only
from tests.run.conftest import FILE
from tests.tiers import deep

FORK = multiprocessing.get_context("fork")
LINK = "vllm/__init__.py"
PYTHON = Path(sys.executable)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_several_at_once_make_one_farm(small: Content, cache: Path) -> None:
    """No pool: it ends its processes by a signal, which may reach one that has only just been forked."""
    runs = [FORK.Process(target=farm_of, args=(small, cache, PYTHON)) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()

    assert [run.exitcode for run in runs] == [0] * 4
    assert [path.name for path in cache.iterdir()] == [small.key]
    assert not list(changes(small, cache / small.key))


@pytest.mark.parametrize("at", [deep(0), 1])
def test_a_killed_run_leaves_no_half_farm(
    at: int, small: Content, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, place = iter(range(100_000)), Path.symlink_to

    def link(self: Path, target: str) -> None:
        if next(steps) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        place(self, target)

    monkeypatch.setattr(Path, "symlink_to", link)
    run = FORK.Process(target=farm_of, args=(small, cache, PYTHON))
    run.start()
    run.join()

    assert run.exitcode == -signal.SIGKILL
    (left,) = cache.glob(f"{STAGING}*")
    assert not (cache / small.key).exists()
    monkeypatch.undo()
    old = time.time() - LEFT_OVER_S - 1
    os.utime(left, (old, old))
    assert not list(changes(small, farm_of(small, cache, PYTHON)))
    assert not left.exists()


def test_what_another_run_stages_stays_or_vanishes(
    small: Content, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = cache / f"{STAGING}other"
    staged.mkdir(parents=True)
    monkeypatch.setattr(Path, "glob", lambda _self, _pattern: [staged, cache / f"{STAGING}gone"])
    farm = farm_of(small, cache, PYTHON)

    assert (farm.is_dir(), staged.exists()) == (True, True)


def test_a_farm(small: Content, cache: Path) -> None:
    """Nothing in it is open, whatever the umask: Python would make a missing folder for bytecode in the command's."""
    before = os.umask(0)
    try:
        farm = farm_of(small, cache, PYTHON)
    finally:
        os.umask(before)
    (compiled,) = (farm / "vllm/engine/__pycache__").glob("arg_utils.*.pyc")
    (farm / "vllm/engine/__pycache__/arg_utils.cpython-399.pyc").write_bytes(b"")  # Python writes there, too

    made = [path for path in farm.rglob("*") if not path.is_symlink() and path.name != "arg_utils.cpython-399.pyc"]
    assert [path for path in made if path.stat().st_mode & 0o022] == []
    packages = {path.parent for path in farm.rglob("*.py")}
    assert [folder for folder in packages if not (folder / "__pycache__").is_dir()] == []
    assert str(farm / FILE).encode() in compiled.read_bytes(), "its final name"
    assert STAGING.encode() not in compiled.read_bytes()
    assert (farm / MANIFEST).read_bytes() == small.manifest
    assert list(changes(small, farm)) == []
    assert farm_of(small, cache, PYTHON) == farm
    shutil.rmtree(farm)
    assert farm_of(small, cache, PYTHON) == farm


def another(path: str, target: str = "") -> Callable[[Path], None]:
    """Return a function that puts a link in the place of a file, or a pipe."""

    def put(farm: Path) -> None:
        (farm / path).rename(farm / "vllm/engine/moved.py")
        (farm / path).symlink_to(target) if target else os.mkfifo(farm / path)

    return put


HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "rewritten": (lambda farm: (farm / FILE).write_bytes(b"x = 1\n"), FILE),
    "removed": (lambda farm: (farm / FILE).unlink(), FILE),
    "a link": (another(FILE, "moved.py"), FILE),
    "a pipe": (another(FILE), FILE),
    "a link to elsewhere": (another(LINK, "/dev/null"), LINK),
    "added": (lambda farm: (farm / "torch.py").write_bytes(b""), "torch.py"),
    "another manifest": (lambda farm: (farm / MANIFEST).write_bytes(b"{}"), MANIFEST),
    "an open file": (lambda farm: (farm / FILE).chmod(0o666), FILE),
    "an open folder": (lambda farm: (farm / "vllm/engine/__pycache__").chmod(0o777), "vllm/engine/__pycache__"),
    "another user's file": (lambda farm: os.chown(farm / FILE, 12345, -1), FILE),
    "another user's folder": (lambda farm: os.chown(farm / "vllm/engine", 12345, -1), "vllm/engine"),
}


@root_only
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("harm", HARM)
def test_a_changed_farm_is_refused(harm: str, small: Content, cache: Path) -> None:
    change, path = HARM[harm]
    farm = farm_of(small, cache, PYTHON)
    change(farm)

    with pytest.raises(Failure, match=f"farm changed: {farm}/{path}: .*; remove {farm}"):
        farm_of(small, cache, PYTHON)


def test_what_cannot_be_made(small: Content, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Failure, match=f"{tmp_path}/file/cache: not a directory; name a folder"):
        farm_of(small, tmp_path / "file/cache", PYTHON)
    with pytest.raises(Failure, match="cannot compile"):
        farm_of(Content(small.root, (), {FILE: b"x = ("}), cache, PYTHON)
    assert list(cache.iterdir()) == []


# --- who may write there --------------------------------------------------------------------------------------------


def test_a_cache_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    """So is one below such a folder, unless it is sticky, or by a link."""
    (tmp_path / "shared/mine").mkdir(parents=True)
    (tmp_path / "link").symlink_to("shared")
    shared = tmp_path / "shared"
    for mode in (0o777, 0o770, 0o1777):
        shared.chmod(mode)
        with pytest.raises(Failure, match=rf"not a safe folder for farms: {shared}: others may write .*{mode:o}"):
            refuse_open(shared)
    shared.chmod(0o777)
    for place in ("shared/mine", "link"):
        with pytest.raises(Failure, match=f"{shared}: others"):
            refuse_open(tmp_path / place)

    for mode in (0o755, 0o1777):
        shared.chmod(mode)
        refuse_open(shared / "mine")


@root_only
def test_a_foreign_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs/cache").mkdir(parents=True)
    os.chown(tmp_path / "theirs", 12345, -1)

    with pytest.raises(Failure, match=f"{tmp_path}/theirs: it belongs to user 12345: who can write there"):
        refuse_open(tmp_path / "theirs/cache")
