"""A farm in a named folder: whole or visibly not, replaced if it differs, and never in place of the user's files."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from vpatch.errors import Failure
from vpatch.guest.vpatch_receipt import MANIFEST
from vpatch.run import store
from vpatch.run.content import Content
from vpatch.run.export import PART, put
from vpatch.tree.backup import sha256

from tests.conftest import contents_of, unchanged
from tests.needs import root_only

FORK = multiprocessing.get_context("fork")
FILE = "vllm/engine/arg_utils.py"
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
def farm(tmp_path: Path) -> Farm:
    """Of a vLLM of three files; one is changed, and one is new."""
    root = tmp_path / "site-packages"
    for file in ("vllm/__init__.py", FILE, "vllm/v1/core.py"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"x = 1\n")
    files = {FILE: b"x = 2\n", "vllm/_vpatch/new.py": b""}
    return Farm(tmp_path / "farm", Content(root, ("one",), files))


def test_a_missing_folder_is_made_and_an_empty_one_filled(farm: Farm, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "a/b", tmp_path / "empty"):
        made = replace(farm, folder=folder)
        made.put()
        assert made.is_whole()
        assert (folder / MANIFEST).read_bytes() == farm.content.manifest
        assert not (folder / PART).exists()


def test_a_volume_that_everybody_may_write_to_will_do(farm: Farm) -> None:
    farm.folder.mkdir()
    farm.folder.chmod(0o2777)
    farm.put()

    assert farm.folder.stat().st_mode & 0o7777 == 0o2777


def test_another_user_may_read_it_whatever_the_umask(farm: Farm) -> None:
    before = os.umask(0o077)
    try:
        farm.put()
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    made = [path for path in farm.folder.rglob("*") if not path.is_symlink()]

    assert {path.stat().st_mode & 0o005 for path in made if path.is_dir()} == {0o005}
    assert {path.stat().st_mode & 0o004 for path in made} == {0o004}


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


def spoil(farm: Farm) -> Farm:
    (farm.folder / FILE).write_bytes(b"x = 1\n")
    return farm


def cut_off(farm: Farm) -> Farm:
    shutil.rmtree(farm.folder)
    farm.folder.mkdir()
    (farm.folder / PART).write_bytes(b'{"schema"')
    return farm


@pytest.mark.parametrize("change", [upgrade, spoil, cut_off])
def test_a_farm_that_differs_is_replaced(change: Callable[[Farm], Farm], farm: Farm) -> None:
    farm.put()
    farm = change(farm)
    assert not farm.is_whole()
    farm.put()

    assert farm.is_whole()


def test_who_holds_the_old_manifest_still_reads_it(farm: Farm) -> None:
    """As each process of vLLM that runs the old export does: it is its receipt."""
    farm.put()
    with (farm.folder / MANIFEST).open("rb") as held:
        farm.other().put()
        shown = Path(f"/proc/self/fd/{held.fileno()}").readlink()

        assert held.read() == farm.content.manifest
        assert str(shown) == f"{farm.folder / MANIFEST} (deleted)"


@pytest.mark.parametrize("place", ["vllm/engine", "vllm/engine/__pycache__", FILE])
def test_what_others_may_write_to_is_replaced(place: str, farm: Farm) -> None:
    farm.put()
    (farm.folder / place).chmod(0o777)
    farm.put()

    assert (farm.folder / place).stat().st_mode & 0o022 == 0


@root_only
def test_the_farm_may_belong_to_another_user(farm: Farm) -> None:
    """To the one of the container that exported it before."""
    farm.put()
    for path in farm.folder.rglob("*"):
        os.chown(path, 12345, 12345, follow_symlinks=False)
    farm.put()

    assert (farm.folder / FILE).stat().st_uid == 12345


def test_another_selection_replaces_all_of_it(farm: Farm) -> None:
    farm.put()
    left = farm.folder / "vllm/engine/__pycache__/left.cpython-399.pyc"
    left.touch()
    farm.other().put()

    assert farm.other().is_whole()
    assert not left.exists()


@pytest.mark.parametrize("step", ["write_new", "symlink_to", "replace", "unlink", "compiled", "rmtree"])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_killed_export_is_visibly_not_whole_and_the_next_one_completes_it(at: int, step: str, farm: Farm) -> None:
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


def test_a_half_farm_is_refused_by_its_receipt(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM calls `register` of an entry point that is there as soon as any of its modules is."""

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "symlink_to", fail)
    with pytest.raises(KeyboardInterrupt):
        farm.put()
    find = "from importlib.metadata import entry_points as e; e(group='vllm.general_plugins', name='vpatch_receipt')"
    environment = {"PYTHONPATH": str(farm.folder)}
    ran = subprocess.run(
        [PYTHON, "-c", f"{find}['vpatch_receipt'].load()()"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 1
    assert f"{farm.folder / MANIFEST}" in ran.stderr


def test_several_at_once_wait_for_each_other(farm: Farm) -> None:
    runs = [FORK.Process(target=one.put) for one in (farm, farm.other(), farm)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()

    assert [run.exitcode for run in runs] == [0] * 3
    assert farm.is_whole() != farm.other().is_whole()


@pytest.mark.parametrize(("file", "has"), [("notes.txt", "notes.txt"), ("vllm/__init__.py", "vllm")])
def test_a_folder_with_other_files_is_refused(file: str, has: str, farm: Farm) -> None:
    (farm.folder / file).parent.mkdir(parents=True)
    (farm.folder / file).touch()
    told = f"not a folder for a farm: {farm.folder}: it has {has}, and is no farm"
    with unchanged(farm.folder), pytest.raises(Failure, match=told):
        farm.put()


@pytest.mark.parametrize("file", ["notes.txt", "vllm/mine.py", "vllm_notes/a", "a/__pycache__/b.pyc"])
def test_so_is_a_farm_with_the_users_file_in_it(file: str, farm: Farm) -> None:
    farm.put()
    (farm.folder / file).parent.mkdir(parents=True, exist_ok=True)
    (farm.folder / file).touch()
    before = contents_of(farm.folder)
    with pytest.raises(Failure, match=f"not a folder for a farm: {farm.folder}/{file}: vpatch did not write it"):
        farm.put()

    assert contents_of(farm.folder) == before


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(
            (kind, name)
            for kind in ("link", "pipe")
            for name in (MANIFEST, PART, "vpatch_receipt.py", "__pycache__/a.pyc")
        ),
        ("pipe", "vllm/_vpatch/new.py"),
    ],
)
def test_so_is_a_link_or_a_pipe_in_place_of_a_file_of_a_farm(kind: str, name: str, farm: Farm, tmp_path: Path) -> None:
    """It would be written through, or waited for. Links in vLLM's folder are a farm's own: they go with it."""
    farm.put()
    (tmp_path / "mine").write_bytes(farm.content.manifest)
    place = farm.folder / name
    place.unlink(missing_ok=True)
    if kind == "link":
        place.symlink_to(tmp_path / "mine")
    else:
        os.mkfifo(place)
    with pytest.raises(Failure, match=f"not a folder for a farm: {place}: vpatch did not write it"):
        farm.other().put()

    assert (tmp_path / "mine").read_bytes() == farm.content.manifest
    assert (farm.folder / FILE).exists()


def test_nothing_is_written_through_a_link_in_vllms_folder(farm: Farm, tmp_path: Path) -> None:
    farm.put()
    (tmp_path / "mine").touch()
    (farm.folder / FILE).unlink()
    (farm.folder / FILE).symlink_to(tmp_path / "mine")
    farm.put()

    assert farm.is_whole()
    assert (tmp_path / "mine").read_bytes() == b""


def test_the_installed_vllm_is_no_place_for_it(farm: Farm) -> None:
    root = farm.content.root
    with unchanged(root):
        with pytest.raises(Failure, match="it is in vLLM's own folder"):
            replace(farm, folder=root / "vllm/farm").put()
        with pytest.raises(Failure, match=f"{root}: it has vllm, and is no farm"):
            replace(farm, folder=root).put()


def test_a_folder_that_cannot_be_written_to_is_named(farm: Farm, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Failure, match=f"cannot write the farm: {tmp_path}/file/farm: not a directory"):
        replace(farm, folder=tmp_path / "file/farm").put()
    with pytest.raises(Failure, match=f"not a folder for a farm: {tmp_path}/a:b: PYTHONPATH ends a name at ':'"):
        replace(farm, folder=tmp_path / "a:b").put()


def test_a_folder_that_cannot_be_locked_is_named(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(Failure, match=f"cannot lock the folder: {farm.folder}: bad file descriptor"):
        farm.put()
