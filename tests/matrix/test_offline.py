"""Without a network, the cache answers, and says so; damaged entries are reported, fetched again, and never used."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from vpatch.matrix.cache import LISTINGS, WHEELS, Cache
from vpatch.matrix.releases import releases_of
from vpatch.net import session

from tests.failures import problem_of, problems_of
from tests.loopback import NAME, SOURCES, IndexServer, make_wheel, record_of
from tests.matrix.conftest import CORE, FILES, INIT, WANTED, flip, release_of


@pytest.mark.parametrize(("how", "cause"), [("down", "connection refused"), ("silent", "no answer within 0.1 s")])
def test_offline_with_a_warm_cache_it_works_and_says_so(
    index: IndexServer, cache: Cache, monkeypatch: pytest.MonkeyPatch, how: str, cause: str
) -> None:
    online = releases_of("vllm", [], cache)
    (release,) = online.releases
    tree = release.read(FILES)
    assert online.notes == ()
    monkeypatch.setattr(session, "TIMEOUT", 0.1)
    if how == "down":
        index.stop()
    else:
        index.stalls = "/simple/"

    for versions in ([], ["1.0"]):
        offline = releases_of("vllm", versions, cache)

        assert offline.releases == online.releases
        (note,) = offline.notes
        assert note.startswith(f"offline: {index.url}/simple/: {cause}; vllm releases as of 20")
        assert note.endswith(" UTC")
        again = offline.releases[0].read(FILES)
        assert (again.files, again.received, again.size) == (tree.files, 0, tree.size)


def test_an_index_that_answers_is_believed(index: IndexServer, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without TLS, or with a wrong certificate, is an answer, too: it must not hold releases back."""
    releases_of("vllm", [], cache)
    for page in ("500", "403", "picture"):
        index.page = page
        assert problem_of(releases_of, "vllm", [], cache).what == "package index failed"

    url = f"{index.url.replace('http:', 'https:')}/simple/"
    note = {"date": "2026-01-01 00:00 UTC", "offers": []}
    cache.put_note(LISTINGS, hashlib.sha256(f"vllm\n{url}".encode()).hexdigest(), note)
    monkeypatch.setenv("PIP_INDEX_URL", url)
    line = str(problem_of(releases_of, "vllm", [], cache))
    assert line.startswith(f"package index failed: {url}: ")
    assert "\n" not in line


def test_offline_without_a_listing(index: IndexServer, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing in the cache is damaged, belongs to another index, or is missing."""
    releases_of("vllm", [], cache)
    index.stop()
    with monkeypatch.context() as patched:
        patched.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
        for kept_in in (cache, None):
            line = str(problem_of(releases_of, "vllm", [], kept_in))
            assert line == "package index failed: http://127.0.0.1:1/simple: connection refused"

    (path,) = (cache.folder / LISTINGS).iterdir()
    path.write_bytes(path.read_bytes().replace(b"1.0", b"2.0"))
    assert [str(problem) for problem in problems_of(releases_of, "vllm", [], cache)] == [
        f"package index failed: {index.url}/simple/: connection refused",
        f"damaged in the cache: {index.url}/simple/: the list of its vllm releases is gone",
    ]
    assert not path.exists()


def test_offline_a_release_that_is_not_known_may_be_new(index: IndexServer, cache: Cache) -> None:
    releases_of("vllm", [], cache)
    index.stop()

    unknown, offline = map(str, problems_of(releases_of, "vllm", ["1.0", "1.1"], cache))
    assert unknown == "no such release: vllm 1.1: the index has 1.0"
    assert offline.startswith(f"offline: {index.url}/simple/: connection refused; vllm releases as of 20")


@pytest.mark.parametrize("damaged", [False, True])
def test_offline_a_missing_member_is_reported(index: IndexServer, cache: Cache, *, damaged: bool) -> None:
    """Damage is no excuse."""
    release_of(cache).read(FILES if damaged else [INIT])
    if damaged:
        flip(object_of(cache, WANTED[CORE]))
    index.stop()

    line = str(problem_of(release_of(cache).read, FILES))
    assert line == f"cannot read: {index.url}/files/{NAME}: connection refused"


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
    (path,) = (path for path in (cache.folder / "objects").glob("*/*") if path.read_bytes() == data)
    return path


@pytest.mark.parametrize(("what", "named"), [("member", CORE), ("RECORD", "RECORD"), ("note", "RECORD"), ("gone", "")])
def test_what_is_damaged_is_fetched_again_and_reported(index: IndexServer, cache: Cache, what: str, named: str) -> None:
    release_of(cache).read(FILES)
    (note,) = (cache.folder / WHEELS).iterdir()
    content = WANTED[CORE] if what == "member" else index.wanted()["vllm-1.0.dist-info/RECORD"]
    if what == "gone":
        object_of(cache, WANTED[CORE]).unlink()
    else:
        flip(note if what == "note" else object_of(cache, content))

    healed = release_of(cache).read(FILES)

    assert healed.files == WANTED
    assert healed.received > 0
    assert healed.notes == ((f"damaged in the cache, fetched again: {named} of {NAME}",) if named else ())
    again = release_of(cache).read(FILES)
    assert (again.received, again.notes) == (0, ())


@pytest.mark.parametrize(
    "hash_", ["", "sha256=", "sha256=!", "sha256=A", "sha256=AA=", "sha256=AAAA", "md5=" + "A" * 43]
)
def test_a_record_that_says_no_hash_refuses_the_member(index: IndexServer, cache: Cache, hash_: str) -> None:
    others = "".join(f"{name},{hash_},3\n" for name in SOURCES if name != INIT)
    index.publish(NAME, make_wheel(record=record_of({INIT: SOURCES[INIT]}) + others.encode()))
    (cache.folder / "objects/00").mkdir(parents=True)
    assert release_of(cache).read([INIT]).files == {INIT: SOURCES[INIT]}

    line = str(problem_of(release_of(cache).read, FILES))
    assert line == f"wrong bytes: {CORE} of {NAME}: its sha256 or size is not the one in RECORD"


def test_a_size_that_record_has_wrong_refuses_what_another_wheel_brought(index: IndexServer, cache: Cache) -> None:
    name = NAME.replace("1.0", "2.0")
    right = record_of(SOURCES)
    line = f",{len(SOURCES[CORE])}\n".encode()
    assert right.count(line) == 1
    wrong = right.replace(line, b",1\n").replace(b"vllm-1.0", b"vllm-2.0")
    index.publish(name, make_wheel(record=wrong, release="vllm-2.0"))
    release_of(cache).read(FILES)
    release_of(cache, "2.0").read([INIT])

    said = str(problem_of(release_of(cache, "2.0").read, FILES))
    assert said == f"wrong bytes: {CORE} of {name}: its sha256 or size is not the one in RECORD"
