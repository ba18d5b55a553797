"""The cache returns exactly what was put, also while other runs use it; clearing it removes nothing else."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from vpatch.errors import Failure
from vpatch.matrix.cache import LISTINGS, SHA256, WHEELS, Cache, Usage
from vpatch.settings import cache_folder

from tests.failures import problem_of
from tests.matrix.conftest import flip
from tests.processes import printed

# Without these capabilities root has the permissions of any other user, and still finds the interpreter.
HUMBLE = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search,-fowner,-chown") if os.getuid() == 0 else ()
KEY = "1" * 64
DATA = b"some bytes\n"
HASH = hashlib.sha256(DATA).hexdigest()
OBJECT = f"objects/{HASH[:2]}/{HASH[2:]}"
BAD = "f" * 64
FF = f"objects/ff/{BAD[2:]}"
CLOSED = [
    ("new", 0o500, "Cache.opened()", "cannot write the cache: {folder}"),
    (OBJECT, 0o000, f"Cache.opened().get({HASH!r}, print)", f"cannot read the cache: {{folder}}/{OBJECT}"),
    ("objects/ff", 0o500, f"Cache.opened().get({BAD!r}, print)", f"cannot write the cache: {{folder}}/{FF}"),
    ("objects", 0o000, "Cache.opened().usage()", "cannot read the cache: {folder}/objects"),
    ("wheels", 0o400, "Cache.opened().clear()", f"cannot read the cache: {{folder}}/wheels/{KEY}"),
]
FULL = "Cache.opened().put(b'x' * 5000)"
TRIES = f"""
import resource, sys
from pathlib import Path
from vpatch.errors import Failure
from vpatch.matrix.cache import Cache
def tried(call):
    try:
        eval(call)
    except Failure as failure:
        print(failure)
for closed, mode, call, _ in {CLOSED}:
    Path(sys.argv[1], closed).chmod(mode)
    tried(call)
    Path(sys.argv[1], closed).chmod(0o700)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, -1))
tried({FULL!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
"""


def files_in(top: Path) -> list[str]:
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if not path.is_dir() or path.is_symlink())


def empty(path: Path) -> None:
    path.write_bytes(b"")


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def never() -> None:
    raise AssertionError("it is not damaged")


def test_gives_what_was_put(cache: Cache) -> None:
    assert cache.put(DATA) == HASH
    assert cache.get(HASH, never) == DATA
    assert cache.get(KEY, never) is None

    cache.put_note(WHEELS, KEY, {"a": ["ü", 1, None]})

    assert cache.note(WHEELS, KEY, never) == {"a": ["ü", 1, None], "schema": 1}
    assert cache.note(LISTINGS, KEY, never) is None
    assert files_in(cache.folder) == [OBJECT, f"wheels/{KEY}"]


@pytest.mark.parametrize("harm", [flip, empty, shorten])
def test_what_is_damaged_is_reported_and_removed(cache: Cache, harm: Callable[[Path], None]) -> None:
    cache.put(DATA)
    cache.put_note(WHEELS, KEY, {"size": 111111})
    for file in (OBJECT, f"{WHEELS}/{KEY}"):
        harm(cache.folder / file)
    assert cache.notes(WHEELS) == []

    reported: list[str] = []
    assert cache.get(HASH, lambda: reported.append("object")) is None
    assert cache.note(WHEELS, KEY, lambda: reported.append("note")) is None
    assert reported == ["object", "note"]

    assert cache.get(HASH, never) is None
    assert cache.note(WHEELS, KEY, never) is None
    cache.put(DATA)
    assert cache.get(HASH, never) == DATA


def test_a_note_of_another_schema_is_not_read(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vpatch.matrix.cache.SCHEMA", 2)
    cache.put_note(WHEELS, KEY, {"size": 1})
    monkeypatch.undo()
    cache = Cache(cache.folder)

    assert cache.note(WHEELS, KEY, never) is None
    assert cache.notes(WHEELS) == []


@pytest.mark.parametrize("text", ["", "../" * 21 + "x", KEY.replace("1", "A"), KEY + "\n", KEY[1:]])
def test_only_a_sha256_becomes_a_path(text: str) -> None:
    assert not SHA256.fullmatch(text)
    assert SHA256.fullmatch(HASH)


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == tmp_path / ".cache/vpatch"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/vpatch")
    (tmp_path / "caches").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    line = f"cannot write the cache: {tmp_path}/caches/vpatch: not a directory; use --no-cache to do without"
    assert str(problem_of(Cache.opened)) == line


def test_says_that_there_is_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("Could not determine home directory.")))
    line = "no folder: ~/.cache: no home folder; set XDG_CACHE_HOME, or use --no-cache"

    assert str(problem_of(Cache.opened)) == line


def test_says_that_it_may_not_be_used_or_written(cache: Cache) -> None:
    """A full disk leaves nothing half-written."""
    cache.put(DATA)
    cache.put_note(WHEELS, KEY, {})
    (cache.folder / "objects/ff").mkdir()
    (cache.folder / FF).write_text("damaged")
    before = files_in(cache.folder)
    lines = printed(TRIES, str(cache.folder), wrapper=HUMBLE).splitlines()

    expected = [f"{line.format(folder=cache.folder)}: permission denied" for *_, line in CLOSED]
    expected += [f"cannot write the cache: {cache.folder}: file too large"]
    assert lines == [f"{line}; use --no-cache to do without" for line in expected]
    assert files_in(cache.folder) == before


@pytest.mark.deep
def test_runs_at_once_do_not_harm_each_other(cache: Cache) -> None:
    """Several threads put the same objects while one clears: each gets what it put, or nothing."""
    objects = [b"%d" % n * 50_000 for n in range(8)]
    wrong: list[object] = []
    end = threading.Event()

    def work() -> None:
        for _ in range(25):
            for data in objects:
                try:
                    found = cache.get(cache.put(data), lambda: wrong.append("damaged"))
                except Failure as error:
                    wrong.append(error)
                else:
                    wrong.extend({found} - {None, data})

    def clear() -> None:
        while not end.wait(0.01):
            cache.clear()

    workers = [threading.Thread(target=work) for _ in range(4)]
    clearer = threading.Thread(target=clear)
    for thread in (*workers, clearer):
        thread.start()
    for thread in workers:
        thread.join()
    end.set()
    clearer.join()

    assert wrong == []


def test_clears_its_own_files_and_no_others(cache: Cache, tmp_path: Path) -> None:
    cache.put(DATA)
    cache.put_note(LISTINGS, KEY, {})
    (cache.folder / "new" / ("a" * 32)).write_bytes(b"left by a killed run")
    outside = tmp_path / "outside"
    (outside / "ab").mkdir(parents=True)
    (outside / "ab" / ("c" * 62)).write_text("mine")
    theirs = ["objects/more/README", "notes.txt", f"wheels/{'2' * 64}.bak", f"objects/{'d' * 62}"]
    for name in theirs:
        (cache.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (cache.folder / name).write_text("theirs")
    (cache.folder / "objects/ab").symlink_to(outside / "ab")
    (cache.folder / "wheels" / ("3" * 64)).symlink_to(outside / "ab" / ("c" * 62))
    assert cache.usage().files == 3

    gone = cache.clear()

    assert (gone.files, cache.usage()) == (3, Usage())
    assert gone.bytes > len(DATA)
    assert files_in(cache.folder) == sorted([*theirs, "objects/ab", f"wheels/{'3' * 64}"])
    assert files_in(outside) == [f"ab/{'c' * 62}"]
    assert cache.clear() == Usage()
    for name in (*theirs, "objects/ab", f"wheels/{'3' * 64}"):
        (cache.folder / name).unlink()
    (cache.folder / "objects/more").rmdir()
    cache.clear()
    assert not cache.folder.exists(), "no empty folder is left"
    cache.put(DATA)
    assert cache.get(HASH, never) == DATA
