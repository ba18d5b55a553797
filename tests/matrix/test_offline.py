"""Without a network, the cache answers, and says so; damaged entries are reported, fetched again, and never used."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.matrix.cache import LISTINGS, WHEELS, Cache
from vpatch.matrix.releases import releases_of
from vpatch.net import session

from tests.loopback import NAME, SOURCES, IndexServer, make_wheel, record_of
from tests.matrix.conftest import CORE, FILES, INIT, WANTED, release_of


def test_offline_with_a_warm_cache_it_works_and_says_so(index: IndexServer, cache: Cache) -> None:
    online = releases_of("vllm", [], cache)
    (release,) = online.releases
    tree = release.read(FILES)
    assert online.notes == ()
    index.stop()

    for versions in ([], ["1.0"]):
        offline = releases_of("vllm", versions, cache)

        assert offline.releases == online.releases
        (note,) = offline.notes
        assert note.startswith(f"offline: {index.url}/simple/: connection refused; vllm releases as of 20")
        assert note.endswith(" UTC")
        again = offline.releases[0].read(FILES)
        assert (again.files, again.received, again.size) == (tree.files, 0, tree.size)


def test_an_index_that_is_silent_counts_as_offline(
    index: IndexServer, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    online = releases_of("vllm", [], cache)
    monkeypatch.setattr(session, "TIMEOUT", 0.1)
    index.stalls = "/simple/"

    offline = releases_of("vllm", [], cache)

    assert offline.releases == online.releases
    assert "no answer within 0.1 s" in offline.notes[0]


def test_an_index_with_a_wrong_certificate_does_not(
    index: IndexServer, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer without TLS, or with a wrong certificate, is an answer: it must not hold releases back."""
    url = f"{index.url.replace('http:', 'https:')}/simple/"
    note = {"date": "2026-01-01 00:00 UTC", "offers": []}
    cache.put_note(LISTINGS, hashlib.sha256(f"vllm\n{url}".encode()).hexdigest(), note)
    monkeypatch.setenv("PIP_INDEX_URL", url)

    with pytest.raises(Failure) as caught:
        releases_of("vllm", [], cache)

    assert str(caught.value).startswith(f"package index failed: {url}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("page", ["500", "403", "picture"])
def test_an_index_that_answers_is_believed(index: IndexServer, cache: Cache, page: str) -> None:
    releases_of("vllm", [], cache)
    index.page = page

    with pytest.raises(Failure, match=r"^package index failed: "):
        releases_of("vllm", [], cache)


def test_offline_without_a_listing(index: IndexServer, cache: Cache) -> None:
    (cache.folder / LISTINGS).mkdir()
    index.stop()

    for kept_in in (cache, None):
        with pytest.raises(Failure) as caught:
            releases_of("vllm", [], kept_in)
        assert str(caught.value) == f"package index failed: {index.url}/simple/: connection refused"


def test_offline_with_a_damaged_listing(index: IndexServer, cache: Cache) -> None:
    releases_of("vllm", [], cache)
    (path,) = (cache.folder / LISTINGS).iterdir()
    path.write_bytes(path.read_bytes().replace(b"1.0", b"2.0"))
    index.stop()

    with pytest.raises(Failure) as caught:
        releases_of("vllm", [], cache)

    assert str(caught.value).splitlines() == [
        f"package index failed: {index.url}/simple/: connection refused",
        f"damaged in the cache: {index.url}/simple/: the list of its vllm releases is gone",
    ]
    assert not path.exists()


def test_offline_a_release_that_is_not_known_may_be_new(index: IndexServer, cache: Cache) -> None:
    releases_of("vllm", [], cache)
    index.stop()

    with pytest.raises(Failure) as caught:
        releases_of("vllm", ["1.0", "1.1"], cache)

    unknown, offline = str(caught.value).splitlines()
    assert unknown == "no such release: vllm 1.1: the index has 1.0"
    assert offline.startswith(f"offline: {index.url}/simple/: connection refused; vllm releases as of 20")


def test_offline_without_the_listing_being_read_from_another_index(
    index: IndexServer, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases_of("vllm", [], cache)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")

    with pytest.raises(Failure, match=r"^package index failed: http://127.0.0.1:1/simple: connection refused$"):
        releases_of("vllm", [], cache)


def test_offline_a_missing_member_is_reported(index: IndexServer, cache: Cache) -> None:
    release_of(cache).read([INIT])
    index.stop()

    with pytest.raises(Failure) as caught:
        release_of(cache).read(FILES)

    assert str(caught.value) == f"cannot read: {index.url}/files/{NAME}: connection refused"


def test_no_secret_is_kept_or_shown(index: IndexServer, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:secret@") + "/simple/")
    index.login = "me:secret"
    release_of(cache).read(FILES)
    index.stop()

    told = " ".join(releases_of("vllm", [], cache).notes)

    assert "offline" in told
    assert "secret" not in told
    assert not any(b"secret" in path.read_bytes() for path in cache.folder.rglob("*") if path.is_file())


# --- damage ---------------------------------------------------------------------------------------------------------


def object_of(cache: Cache, data: bytes) -> Path:
    """Return the path of an object in the cache."""
    (path,) = (path for path in (cache.folder / "objects").glob("*/*") if path.read_bytes() == data)
    return path


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_member_is_fetched_again_and_reported(index: IndexServer, cache: Cache) -> None:
    release_of(cache).read(FILES)
    damage(object_of(cache, WANTED[CORE]))

    healed = release_of(cache).read(FILES)

    assert healed.files == WANTED
    assert healed.received > 0
    assert healed.notes == (f"damaged in the cache, fetched again: {CORE} of {NAME}",)
    again = release_of(cache).read(FILES)
    assert (again.received, again.notes) == (0, ())


@pytest.mark.parametrize("what", ["RECORD", "note"])
def test_a_damaged_record_is_fetched_again_and_reported(index: IndexServer, cache: Cache, what: str) -> None:
    release_of(cache).read(FILES)
    record = object_of(cache, index.wanted()["vllm-1.0.dist-info/RECORD"])
    (note,) = (cache.folder / WHEELS).iterdir()
    damage(record if what == "RECORD" else note)

    healed = release_of(cache).read(FILES)

    assert healed.files == WANTED
    assert healed.notes == (f"damaged in the cache, fetched again: RECORD of {NAME}",)
    again = release_of(cache).read(FILES)
    assert (again.received, again.notes) == (0, ())


def test_damage_while_offline_is_no_excuse(index: IndexServer, cache: Cache) -> None:
    release_of(cache).read(FILES)
    damage(object_of(cache, WANTED[CORE]))
    index.stop()

    with pytest.raises(Failure, match=rf"^cannot read: .*{NAME}: connection refused$"):
        release_of(cache).read(FILES)


def test_an_object_that_vanished_is_fetched_again(index: IndexServer, cache: Cache) -> None:
    release_of(cache).read(FILES)
    object_of(cache, WANTED[CORE]).unlink()

    again = release_of(cache).read(FILES)

    assert (again.files, again.notes) == (WANTED, ())
    assert again.received > 0


@pytest.mark.parametrize(
    "said", ["", "sha256=", "sha256=!", "sha256=A", "sha256=AA=", "sha256=AAAA", "md5=" + "A" * 43]
)
def test_a_record_that_says_no_hash_refuses_the_member(index: IndexServer, cache: Cache, said: str) -> None:
    record = record_of({INIT: SOURCES[INIT]}) + b"".join(
        f"{name},{said},3\n".encode() for name in SOURCES if name != INIT
    )
    index.publish(NAME, make_wheel(record=record))
    (cache.folder / "objects/00").mkdir(parents=True)
    assert release_of(cache).read([INIT]).files == {INIT: SOURCES[INIT]}

    with pytest.raises(Failure) as caught:
        release_of(cache).read(FILES)

    assert str(caught.value) == f"wrong bytes: {CORE} of {NAME}: its sha256 or size is not the one in RECORD"


def test_a_size_that_record_has_wrong_refuses_what_another_wheel_brought(index: IndexServer, cache: Cache) -> None:
    name = NAME.replace("1.0", "2.0")
    right = record_of(SOURCES)
    line = f",{len(SOURCES[CORE])}\n".encode()
    assert right.count(line) == 1
    index.publish(
        name, make_wheel(record=right.replace(line, b",1\n").replace(b"vllm-1.0", b"vllm-2.0"), release="vllm-2.0")
    )
    release_of(cache).read(FILES)
    release_of(cache, "2.0").read([INIT])

    with pytest.raises(Failure) as caught:
        release_of(cache, "2.0").read(FILES)

    assert str(caught.value) == f"wrong bytes: {CORE} of {name}: its sha256 or size is not the one in RECORD"
