"""A farm in a named folder: whole or visibly not, replaced if it differs, and never in place of the user's files."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from vpatch.errors import Failure
from vpatch.guest.vpatch_receipt import MANIFEST
from vpatch.manifest import sha256
from vpatch.run import store
from vpatch.run.content import Content
from vpatch.run.export import PART, put

from tests.conftest import contents_of, unchanged
from tests.needs import root_only
from tests.run.conftest import FILE
from tests.tiers import deep

FORK = multiprocessing.get_context("fork")
PYTHON = Path(sys.executable)


@dataclass(frozen=True)
class Farm:
    """A folder for a farm, and what it has to hold."""

    folder: Path
    content: Content

    def put(self) -> None:
        put(self.content, self.folder, PYTHON)

    def other(self) -> Farm:
        """The same folder, for a farm with other files."""
        files = {FILE: b"x = 3\n", "vllm/_vpatch/other.py": b""}
        return replace(self, content=Content(self.content.root, ("two",), files))

    def is_whole(self) -> bool:
        return list(store.changes(self.content, self.folder)) == []


@pytest.fixture
def farm(small: Content, tmp_path: Path) -> Farm:
    return Farm(tmp_path / "farm", small)


def test_a_missing_folder_is_made_and_an_empty_one_filled(farm: Farm, tmp_path: Path) -> None:
    """Another user may read it, whatever the umask; a volume that everybody may write to will do."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty").chmod(0o2777)
    before = os.umask(0o077)
    try:
        for folder in (tmp_path / "a/b", tmp_path / "empty"):
            made = replace(farm, folder=folder)
            made.put()
            assert made.is_whole()
            assert (folder / MANIFEST).read_bytes() == farm.content.manifest
            assert not (folder / PART).exists()
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    written = [path for path in (tmp_path / "a/b").rglob("*") if not path.is_symlink()]

    assert (tmp_path / "empty").stat().st_mode & 0o7777 == 0o2777
    assert {path.stat().st_mode & 0o005 for path in written if path.is_dir()} == {0o005}
    assert {path.stat().st_mode & 0o004 for path in written} == {0o004}


def test_the_same_again_writes_bytecode_only(farm: Farm) -> None:
    """Nothing is compared with it, so it could be anybody's."""
    (farm.content.root / "vllm/engine/other.py").touch()
    (farm.content.root / "vllm/engine/__pycache__").mkdir()
    (farm.content.root / "vllm/engine/__pycache__/other.cpython-399.pyc").touch()
    farm.put()
    cache = farm.folder / "vllm/engine/__pycache__"
    (compiled,) = cache.glob("arg_utils.*")
    before, made = compiled.read_bytes(), contents_of(farm.folder)
    for name in (compiled.name, "arg_utils.cpython-398.pyc", "core.cpython-399.pyc"):
        (cache / name).unlink(missing_ok=True)
        (cache / name).write_bytes(b"foreign")
    (farm.folder / "vllm/__pycache__/core.cpython-399.pyc").symlink_to("/dev/null")
    source = (farm.folder / FILE).stat()
    farm.put()

    assert compiled.read_bytes() == before
    assert contents_of(farm.folder) == made
    assert (cache / "other.cpython-399.pyc").is_symlink()
    assert (farm.folder / FILE).stat() == source


def upgrade(farm: Farm) -> Farm:
    """A later plan has read another file, to which the overlay has come to the same."""
    return replace(farm, content=replace(farm.content, replaced={FILE: sha256(b"x = 4\n")}))


def spoil(farm: Farm) -> None:
    (farm.folder / FILE).write_bytes(b"x = 1\n")


def cut_off(farm: Farm) -> None:
    shutil.rmtree(farm.folder)
    farm.folder.mkdir()
    (farm.folder / PART).write_bytes(b'{"schema"')


def link_to_the_users(farm: Farm) -> None:
    (farm.folder / FILE).unlink()
    (farm.folder.parent / "mine").touch()
    (farm.folder / FILE).symlink_to(farm.folder.parent / "mine")


def another_selection(farm: Farm) -> Farm:
    (farm.folder / "vllm/engine/__pycache__/left.cpython-399.pyc").touch()
    return farm.other()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("change", [upgrade, spoil, cut_off, link_to_the_users, another_selection])
def test_a_farm_that_differs_is_replaced(change: Callable[[Farm], Farm | None], farm: Farm) -> None:
    """Who holds the old manifest still reads it, as each process of vLLM that runs the old export does."""
    farm.put()
    with (farm.folder / MANIFEST).open("rb") as held:
        new = change(farm) or farm
        assert not new.is_whole()
        new.put()
        assert new.is_whole()
        shown = Path(f"/proc/self/fd/{held.fileno()}").readlink()
        assert held.read() == farm.content.manifest
        assert str(shown) == f"{farm.folder / MANIFEST} (deleted)"
    assert not (farm.folder / "vllm/engine/__pycache__/left.cpython-399.pyc").exists()
    assert not (mine := farm.folder.parent / "mine").exists() or mine.read_bytes() == b""


@pytest.mark.usefixtures("quick")
@root_only
def test_who_owns_it_and_who_may_write(farm: Farm) -> None:
    """What others may write to is replaced; all may belong to another user, as that of the container before."""
    for place in ("vllm/engine", "vllm/engine/__pycache__", FILE):
        farm.put()
        (farm.folder / place).chmod(0o777)
        farm.put()
        assert (farm.folder / place).stat().st_mode & 0o022 == 0
    for path in farm.folder.rglob("*"):
        os.chown(path, 12345, 12345, follow_symlinks=False)
    farm.put()
    assert (farm.folder / FILE).stat().st_uid == 12345


@pytest.mark.parametrize("at", [0, deep(1), deep(4)])
@pytest.mark.parametrize("step", ["write_new", "symlink_to", "replace", "unlink", "compiled", "rmtree"])
def test_a_killed_export_is_visibly_not_whole_and_the_next_one_completes_it(step: str, at: int, farm: Farm) -> None:
    """Killed at some calls of each function that changes the folder, which has another farm before."""
    farm.other().put()
    run = FORK.Process(target=_killed, args=(step, at, farm))
    run.start()
    run.join()

    if run.exitcode == 0:  # it has fewer steps
        assert at > 0
    else:
        assert run.exitcode == -signal.SIGKILL
        differs = set(store.changes(farm.other().content, farm.folder)) - {PART}
        left = {path.name for path in farm.folder.iterdir()}
        assert (MANIFEST in left) == (not differs)
        assert not left or left & {MANIFEST, PART}
    farm.put()
    assert farm.is_whole()


def _killed(name: str, at: int, farm: Farm) -> None:
    owner: Any = {"compiled": store, "write_new": store, "rmtree": shutil}.get(name, Path)
    real, calls = getattr(owner, name), iter(range(10_000))

    def step(*arguments: Any, **options: Any) -> Any:
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)

    setattr(owner, name, step)
    farm.put()


def test_several_at_once_wait_for_each_other(farm: Farm) -> None:
    runs = [FORK.Process(target=one.put) for one in (farm, farm.other(), farm)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()

    assert [run.exitcode for run in runs] == [0] * 3
    assert farm.is_whole() != farm.other().is_whole()


# --- what is the user's ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_a_folder_with_other_files_is_refused(farm: Farm, tmp_path: Path) -> None:
    for file in ("notes.txt", "vllm/__init__.py"):
        other = replace(farm, folder=tmp_path / f"of {Path(file).name}")
        (other.folder / file).parent.mkdir(parents=True)
        (other.folder / file).touch()
        message = f"not a folder for a farm: {other.folder}: it has {Path(file).parts[0]}, and is no farm"
        with unchanged(other.folder), pytest.raises(Failure, match=message):
            other.put()
    farm.put()
    for file in ("notes.txt", "vllm/mine.py", "vllm_notes/a", "a/__pycache__/b.pyc"):
        (farm.folder / file).parent.mkdir(parents=True, exist_ok=True)
        (farm.folder / file).touch()
        message = f"not a folder for a farm: {farm.folder}/{file}: vpatch did not write it"
        with unchanged(farm.folder), pytest.raises(Failure, match=message):
            farm.put()
        (farm.folder / file).unlink()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", [MANIFEST, PART, "vpatch_receipt.py", "__pycache__/a.pyc"])
def test_so_is_a_link_or_a_pipe_in_place_of_a_file_of_a_farm(kind: str, name: str, farm: Farm, tmp_path: Path) -> None:
    """It would be written through, or waited for. Links in vLLM's folder are a farm's own: they go with it."""
    farm.put()
    (tmp_path / "mine").write_bytes(farm.content.manifest)
    place = farm.folder / name
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    os.mkfifo(place) if kind == "pipe" else place.symlink_to(tmp_path / "mine")
    with pytest.raises(Failure, match=f"not a folder for a farm: {place}: vpatch did not write it"):
        farm.other().put()

    assert (tmp_path / "mine").read_bytes() == farm.content.manifest
    assert (farm.folder / FILE).exists()


def test_a_folder_that_will_not_do_is_named(farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = farm.content.root
    (tmp_path / "file").touch()
    for folder, message in {
        root / "vllm/farm": "it is in vLLM's own folder",
        root: f"{root}: it has vllm, and is no farm",
        tmp_path / "file/farm": f"cannot write the farm: {tmp_path}/file/farm: not a directory",
        tmp_path / "a:b": f"not a folder for a farm: {tmp_path}/a:b: PYTHONPATH ends a name at ':'",
    }.items():
        with unchanged(root), pytest.raises(Failure, match=message):
            replace(farm, folder=folder).put()

    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(9, "Bad file descriptor")))
    with pytest.raises(Failure, match=f"cannot lock the folder: {farm.folder}: bad file descriptor"):
        farm.put()
