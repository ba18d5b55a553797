"""Farms are made once and whole, compared before each use, and refused where others can write."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.guest.vpatch_receipt import MANIFEST
from vpatch.run import store
from vpatch.run.content import Content
from vpatch.run.store import LEFT_OVER_S, changes, farm_of, refuse_open
from vpatch.run.upkeep import STAGING

from tests.needs import root_only
from tests.run.conftest import Installed

FORK = multiprocessing.get_context("fork")
FILE, LINK = "vllm/engine/arg_utils.py", "vllm/__init__.py"


def test_ten_at_once_make_one_farm(installed: Installed) -> None:
    """No pool: it ends its processes by a signal, which may reach one that has only just been forked."""
    content = installed.content()
    runs = [FORK.Process(target=farm_of, args=(content, installed.cache, installed.python)) for _ in range(10)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()

    assert [run.exitcode for run in runs] == [0] * 10
    assert {path.name for path in installed.cache.iterdir()} == {content.key, "memos"}
    assert not list(changes(content, installed.cache / content.key))


@pytest.mark.parametrize("at", range(0, 30, 6))
def test_a_killed_run_leaves_no_half_farm(at: int, installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    content, steps = installed.content(), iter(range(100_000))
    place = Path.symlink_to

    def link(self: Path, target: str) -> None:
        if next(steps) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        place(self, target)

    monkeypatch.setattr(Path, "symlink_to", link)
    run = FORK.Process(target=farm_of, args=(content, installed.cache, installed.python))
    run.start()
    run.join()

    assert run.exitcode == -signal.SIGKILL
    (left,) = installed.cache.glob(f"{STAGING}*")
    assert not (installed.cache / content.key).exists()
    monkeypatch.undo()
    old = time.time() - LEFT_OVER_S - 1
    os.utime(left, (old, old))
    assert not list(changes(content, farm_of(content, installed.cache, installed.python)))
    assert not left.exists()


def test_a_staging_folder_may_vanish_while_it_is_looked_at(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.cache.mkdir()
    monkeypatch.setattr(Path, "glob", lambda _self, _pattern: [installed.cache / f"{STAGING}gone"])

    assert farm_of(Content(installed.root, (), {}), installed.cache, installed.python).is_dir()


def test_what_a_run_of_now_stages_stays(installed: Installed) -> None:
    staged = installed.cache / f"{STAGING}other"
    staged.mkdir(parents=True)

    farm_of(installed.content(), installed.cache, installed.python)

    assert staged.exists()


def rewrite(farm: Path) -> str:
    (farm / FILE).write_bytes(b"x = 1\n")
    return FILE


def replace_by_link(farm: Path) -> str:
    (farm / FILE).rename(farm / "vllm/engine/moved.py")
    (farm / FILE).symlink_to("moved.py")
    return FILE


def retarget(farm: Path) -> str:
    (farm / LINK).unlink()
    (farm / LINK).symlink_to("/dev/null")
    return LINK


def add(farm: Path) -> str:
    (farm / "torch.py").write_bytes(b"")
    return "torch.py"


def say_otherwise(farm: Path) -> str:
    (farm / MANIFEST).write_bytes(b"{}")
    return MANIFEST


def remove(farm: Path) -> str:
    (farm / FILE).unlink()
    return FILE


def open_a_file(farm: Path) -> str:
    (farm / FILE).chmod(0o666)
    return FILE


def open_a_folder(farm: Path) -> str:
    (farm / "vllm/engine/__pycache__").chmod(0o777)
    return "vllm/engine/__pycache__"


def put_a_pipe(farm: Path) -> str:
    (farm / FILE).unlink()
    os.mkfifo(farm / FILE)
    return FILE


CHANGES = [rewrite, replace_by_link, retarget, add, say_otherwise, remove, open_a_file, open_a_folder, put_a_pipe]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_farm_is_refused(change: Callable[[Path], str], installed: Installed) -> None:
    content = installed.content()
    farm = farm_of(content, installed.cache, installed.python)
    assert farm_of(content, installed.cache, installed.python) == farm
    path = change(farm)

    with pytest.raises(Failure, match=f"farm changed: {farm}/{path}: .*; remove {farm}"):
        farm_of(content, installed.cache, installed.python)


@root_only
@pytest.mark.parametrize("place", [FILE, "vllm/engine"])
def test_so_is_one_with_what_belongs_to_another_user(place: str, installed: Installed) -> None:
    content = installed.content()
    farm = farm_of(content, installed.cache, installed.python)
    os.chown(farm / place, 12345, -1)

    with pytest.raises(Failure, match=f"farm changed: {farm}/{place}: "):
        farm_of(content, installed.cache, installed.python)


def test_nothing_in_a_farm_is_open_whatever_the_umask(installed: Installed) -> None:
    """Python would make a missing folder for bytecode when it imports, in the umask of the command."""
    content = installed.content()
    before = os.umask(0)
    try:
        farm = farm_of(content, installed.cache, installed.python)
    finally:
        os.umask(before)
    made = [path for path in farm.rglob("*") if not path.is_symlink()]

    assert [path for path in made if path.stat().st_mode & 0o022] == []
    packages = {path.parent for path in farm.rglob("*.py")}
    assert [folder for folder in packages if not (folder / "__pycache__").is_dir()] == []


def test_bytecode_that_python_writes_is_no_change(installed: Installed) -> None:
    content = installed.content()
    farm = farm_of(content, installed.cache, installed.python)
    (farm / "vllm/engine/__pycache__/arg_utils.cpython-399.pyc").write_bytes(b"")

    assert list(changes(content, farm)) == []


def test_the_files_are_compiled_under_their_final_names(installed: Installed) -> None:
    farm = farm_of(installed.content(), installed.cache, installed.python)
    (compiled,) = (farm / "vllm/engine/__pycache__").glob("arg_utils.*.pyc")

    assert str(farm / FILE).encode() in compiled.read_bytes()
    assert STAGING.encode() not in compiled.read_bytes()


def test_a_folder_that_cannot_be_made_is_named(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(Failure, match=f"{tmp_path}/file/cache: not a directory; name a folder"):
        farm_of(installed.content(), tmp_path / "file/cache", installed.python)


def test_files_that_do_not_compile_are_no_farm(installed: Installed) -> None:
    content = Content(installed.root, (), {FILE: b"x = ("})

    with pytest.raises(Failure, match="cannot compile"):
        farm_of(content, installed.cache, installed.python)
    assert list(installed.cache.iterdir()) == []


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o770, True), (0o1777, True), (0o755, False)])
def test_a_cache_that_others_may_write_to_is_refused(mode: int, refused: bool, tmp_path: Path) -> None:  # noqa: FBT001
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)

    if not refused:
        refuse_open(cache / "farm")
        return
    with pytest.raises(Failure, match=rf"not a safe folder for farms: {cache}: others may write .*{mode:o}"):
        refuse_open(cache)


def test_so_is_one_below_such_a_folder_unless_it_is_sticky(tmp_path: Path) -> None:
    (tmp_path / "shared/mine").mkdir(parents=True)
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(Failure, match=f"{tmp_path}/shared: others"):
        refuse_open(tmp_path / "shared/mine")

    (tmp_path / "shared").chmod(0o1777)
    refuse_open(tmp_path / "shared/mine")


@root_only
def test_a_foreign_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs/cache").mkdir(parents=True)
    os.chown(tmp_path / "theirs", 12345, -1)

    with pytest.raises(Failure, match=f"{tmp_path}/theirs: it belongs to user 12345: who can write there"):
        refuse_open(tmp_path / "theirs/cache")


def test_a_link_to_an_open_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o700)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "cache").symlink_to("open")

    with pytest.raises(Failure, match=f"{tmp_path}/open: others"):
        refuse_open(tmp_path / "cache")


def test_the_manifest_names_the_vllm_and_the_files(installed: Installed) -> None:
    content = installed.content()
    farm = farm_of(content, installed.cache, installed.python)

    assert (farm / MANIFEST).read_bytes() == content.manifest
    shutil.rmtree(farm)
    assert store.farm_of(content, installed.cache, installed.python) == farm
