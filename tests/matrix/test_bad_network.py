"""A network, a server or a cache that fails: the right bytes or one clear line, and nothing wrong is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.matrix.cache import LISTINGS, WHEELS, Cache
from vpatch.matrix.releases import Release, releases_of
from vpatch.release import causes

from tests.loopback import NAME, SOURCES, Site, make_wheel, record_of

CORE, INIT = "vllm/engine/core.py", "vllm/__init__.py"
FILES = (CORE, INIT)
WANTED = {name: SOURCES[name] for name in FILES}


def one(cache: Cache | None, version: str = "1.0") -> Release:
    (release,) = releases_of("vllm", [version], cache).releases
    return release


def kept(cache: Cache) -> list[str]:
    """Give what the cache has of wheels."""
    files = (path.relative_to(cache.folder).as_posix() for path in cache.folder.rglob("*") if path.is_file())
    return sorted(name for name in files if not name.startswith(f"{LISTINGS}/"))


def object_of(cache: Cache, data: bytes) -> Path:
    """Give the file of an object that is there."""
    (path,) = (path for path in (cache.folder / "objects").glob("*/*") if path.read_bytes() == data)
    return path


# --- altered in transit ----------------------------------------------------------------------------------------


def flipped(wheel: bytes, name: bytes, after: int = 4) -> bytes:
    """Change one bit in the body of a member."""
    data = bytearray(wheel)
    data[data.index(name) + len(name) + after] ^= 1
    return bytes(data)


@pytest.mark.parametrize("ranges", ["yes", "ignored"])
def test_an_altered_member_is_refused_and_nothing_is_kept(site: Site, cache: Cache, ranges: str) -> None:
    site.ranges = ranges
    right = site.wanted()["vllm-1.0.dist-info/RECORD"]
    site.altered[NAME] = make_wheel({CORE: b"evil = 1\n"}, right)  # whole as a zip file, its checksums too

    with pytest.raises(Failure) as caught:
        one(cache).read(FILES)

    line = {
        "yes": f"wrong bytes: {CORE}: its sha256 or size is not the one in RECORD",
        "ignored": f"wrong bytes: {site.url}/files/{NAME}: its sha256 is not the one on the index",
    }[ranges]
    assert str(caught.value) == line
    assert kept(cache) == []

    site.altered.clear()
    assert one(cache).read(FILES).files == WANTED


def test_a_flipped_bit_is_refused_and_nothing_is_kept(site: Site, cache: Cache) -> None:
    site.altered[NAME] = flipped(site.files[NAME], CORE.encode())

    with pytest.raises(Failure, match=rf"^damaged wheel: {CORE}: "):
        one(cache).read(FILES)

    assert kept(cache) == []


def test_what_came_before_is_kept_when_the_rest_is_altered(site: Site, cache: Cache) -> None:
    one(cache).read([INIT])
    before = kept(cache)
    site.altered[NAME] = flipped(site.files[NAME], CORE.encode())

    with pytest.raises(Failure):
        one(cache).read(FILES)

    assert kept(cache) == before
    assert one(cache).read([INIT]).received == 0


def test_another_record_than_before_is_refused(site: Site, cache: Cache) -> None:
    one(cache).read([INIT])
    before = kept(cache)
    site.altered[NAME] = make_wheel({CORE: b"evil = 1\n"})  # with a RECORD to match

    with pytest.raises(Failure) as caught:
        one(cache).read(FILES)

    assert str(caught.value) == (
        f"wrong bytes: vllm-1.0.dist-info/RECORD of {NAME}: it is not the one that came before: "
        "if that one was wrong, `vpatch cache --clear` forgets it"
    )
    assert kept(cache) == before


# --- servers that fail -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [
        {"cuts": 2},
        {"ranges": "ignored"},
        {"ranges": "ignored", "cuts": 2},
        {"ranges": "416"},
        {"failures": 2, "busy": 500},
        {"failures": 2, "busy": 500, "cuts": 1},
    ],
)
def test_is_still_right(site: Site, cache: Cache, trouble: dict[str, object]) -> None:
    release = one(cache)
    for name, value in trouble.items():
        setattr(site, name, value)

    tree = release.read(FILES)

    assert tree.files == WANTED
    assert tree.size == len(site.files[NAME])
    assert release.read(FILES).received == 0


@pytest.mark.parametrize(
    ("trouble", "cause"),
    [
        ({"cuts": 99}, "cut off 3 times: "),
        ({"cuts": 99, "ranges": "ignored"}, "cut off 3 times: "),
        ({"failures": 99, "busy": 500}, "the server answers 500 internal server error"),
        ({"ranges": "elsewhere"}, "its server sent another range than the end of the file"),
        ({"ranges": "replaced"}, "it changed while it was read, or its server stopped serving ranges"),
        ({"ranges": "short"}, "cut off 3 times: "),
        ({"login": "me:secret"}, "the server answers 401 unauthorized"),
        ({"stalls": "/files/"}, "no answer within 0.1 s"),
    ],
)
def test_says_in_one_line_what_the_server_did(
    site: Site, cache: Cache, monkeypatch: pytest.MonkeyPatch, trouble: dict[str, object], cause: str
) -> None:
    release = one(cache)
    monkeypatch.setattr(causes, "TIMEOUT", 0.1)
    for name, value in trouble.items():
        setattr(site, name, value)

    with pytest.raises(Failure) as caught:
        release.read(FILES)

    assert str(caught.value).startswith(f"cannot read: {site.url}/files/{NAME}: {cause}")
    assert "\n" not in str(caught.value)
    assert kept(cache) == []


# --- offline ---------------------------------------------------------------------------------------------------


def test_offline_with_a_warm_cache_it_works_and_says_so(site: Site, cache: Cache) -> None:
    online = releases_of("vllm", [], cache)
    (release,) = online.releases
    tree = release.read(FILES)
    assert online.notes == ()
    site.stop()

    for versions in ([], ["1.0"]):
        offline = releases_of("vllm", versions, cache)

        assert offline.releases == online.releases
        (note,) = offline.notes
        assert note.startswith(f"offline: {site.url}/simple/: connection refused; releases as of 20")
        assert note.endswith(" UTC")
        again = offline.releases[0].read(FILES)
        assert (again.files, again.received, again.size) == (tree.files, 0, tree.size)


def test_an_index_that_is_silent_counts_as_offline(site: Site, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    online = releases_of("vllm", [], cache)
    monkeypatch.setattr(causes, "TIMEOUT", 0.1)
    site.stalls = "/simple/"

    offline = releases_of("vllm", [], cache)

    assert offline.releases == online.releases
    assert "no answer within 0.1 s" in offline.notes[0]


@pytest.mark.parametrize("page", ["500", "403", "picture"])
def test_an_index_that_answers_is_believed(site: Site, cache: Cache, page: str) -> None:
    releases_of("vllm", [], cache)
    site.page = page

    with pytest.raises(Failure, match=r"^package index failed: "):
        releases_of("vllm", [], cache)


def test_offline_without_a_listing(site: Site, cache: Cache) -> None:
    (cache.folder / LISTINGS).mkdir()
    site.stop()

    for kept_in in (cache, None):
        with pytest.raises(Failure) as caught:
            releases_of("vllm", [], kept_in)
        assert str(caught.value) == f"package index failed: {site.url}/simple/: connection refused"


def test_offline_with_a_damaged_listing(site: Site, cache: Cache) -> None:
    releases_of("vllm", [], cache)
    (path,) = (cache.folder / LISTINGS).iterdir()
    path.write_bytes(path.read_bytes().replace(b"1.0", b"2.0"))
    site.stop()

    with pytest.raises(Failure, match=r"^package index failed: "):
        releases_of("vllm", [], cache)
    assert not path.exists()


def test_offline_without_the_listing_being_read_from_another_index(
    site: Site, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases_of("vllm", [], cache)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")

    with pytest.raises(Failure, match=r"^package index failed: http://127.0.0.1:1/simple: connection refused$"):
        releases_of("vllm", [], cache)


def test_offline_a_member_that_is_missing_is_told(site: Site, cache: Cache) -> None:
    one(cache).read([INIT])
    site.stop()

    with pytest.raises(Failure) as caught:
        one(cache).read(FILES)

    assert str(caught.value) == f"cannot read: {site.url}/files/{NAME}: connection refused"


def test_no_secret_is_kept_or_told(site: Site, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", site.url.replace("//", "//me:secret@") + "/simple/")
    site.login = "me:secret"
    one(cache).read(FILES)
    site.stop()

    told = " ".join(releases_of("vllm", [], cache).notes)

    assert "offline" in told
    assert "secret" not in told
    assert not any(b"secret" in path.read_bytes() for path in cache.folder.rglob("*") if path.is_file())


# --- a cache that is damaged -----------------------------------------------------------------------------------


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_member_is_fetched_again_and_told(site: Site, cache: Cache) -> None:
    one(cache).read(FILES)
    damage(object_of(cache, WANTED[CORE]))

    healed = one(cache).read(FILES)

    assert healed.files == WANTED
    assert healed.received > 0
    assert healed.notes == (f"damaged in the cache, fetched again: {CORE} of {NAME}",)
    again = one(cache).read(FILES)
    assert (again.received, again.notes) == (0, ())


@pytest.mark.parametrize("what", ["RECORD", "note"])
def test_a_damaged_record_is_fetched_again_and_told(site: Site, cache: Cache, what: str) -> None:
    one(cache).read(FILES)
    record = object_of(cache, site.wanted()["vllm-1.0.dist-info/RECORD"])
    (note,) = (cache.folder / WHEELS).iterdir()
    damage(record if what == "RECORD" else note)

    healed = one(cache).read(FILES)

    assert healed.files == WANTED
    assert healed.notes == (f"damaged in the cache, fetched again: RECORD of {NAME}",)
    again = one(cache).read(FILES)
    assert (again.received, again.notes) == (0, ())


def test_damage_while_offline_is_no_excuse(site: Site, cache: Cache) -> None:
    one(cache).read(FILES)
    damage(object_of(cache, WANTED[CORE]))
    site.stop()

    with pytest.raises(Failure, match=rf"^cannot read: .*{NAME}: connection refused$"):
        one(cache).read(FILES)


def test_an_object_that_vanished_is_fetched_again(site: Site, cache: Cache) -> None:
    one(cache).read(FILES)
    object_of(cache, WANTED[CORE]).unlink()

    again = one(cache).read(FILES)

    assert (again.files, again.notes) == (WANTED, ())
    assert again.received > 0


@pytest.mark.parametrize("said", ["", "sha256=", "sha256=!", "sha256=AAAA", "md5=" + "A" * 43])
def test_a_record_that_says_no_hash_refuses_the_member(site: Site, cache: Cache, said: str) -> None:
    record = record_of({INIT: SOURCES[INIT]}) + b"".join(
        f"{name},{said},3\n".encode() for name in SOURCES if name != INIT
    )
    site.publish(NAME, make_wheel(record=record))
    assert one(cache).read([INIT]).files == {INIT: SOURCES[INIT]}

    with pytest.raises(Failure) as caught:
        one(cache).read(FILES)

    assert str(caught.value) == f"wrong bytes: {CORE}: its sha256 or size is not the one in RECORD"


def test_says_that_the_extra_is_not_installed() -> None:
    code = """
import sys
from vpatch.errors import Failure
sys.modules["requests"] = None
for name in ("releases", "wheel", "shelf"):
    try:
        __import__(f"vpatch.matrix.{name}")
    except Failure as failure:
        print(failure)
import vpatch.matrix.folder
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    assert ran.stdout == "cannot fetch: requests: not installed: pip install 'vpatch[fetch]'\n" * 3
