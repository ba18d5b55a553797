"""What is damaged in the cache is told, fetched again, and never used."""

from __future__ import annotations

from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.matrix.cache import WHEELS, Cache

from tests.loopback import NAME, SOURCES, Site, make_wheel, record_of
from tests.matrix.shop import CORE, FILES, INIT, WANTED, one


def object_of(cache: Cache, data: bytes) -> Path:
    """Give the file of an object that is there."""
    (path,) = (path for path in (cache.folder / "objects").glob("*/*") if path.read_bytes() == data)
    return path


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


@pytest.mark.parametrize(
    "said", ["", "sha256=", "sha256=!", "sha256=A", "sha256=AA=", "sha256=AAAA", "md5=" + "A" * 43]
)
def test_a_record_that_says_no_hash_refuses_the_member(site: Site, cache: Cache, said: str) -> None:
    record = record_of({INIT: SOURCES[INIT]}) + b"".join(
        f"{name},{said},3\n".encode() for name in SOURCES if name != INIT
    )
    site.publish(NAME, make_wheel(record=record))
    (cache.folder / "objects/00").mkdir(parents=True)
    assert one(cache).read([INIT]).files == {INIT: SOURCES[INIT]}

    with pytest.raises(Failure) as caught:
        one(cache).read(FILES)

    assert str(caught.value) == f"wrong bytes: {CORE} of {NAME}: its sha256 or size is not the one in RECORD"


def test_a_size_that_record_has_wrong_refuses_what_another_wheel_brought(site: Site, cache: Cache) -> None:
    name = NAME.replace("1.0", "2.0")
    right = record_of(SOURCES)
    line = f",{len(SOURCES[CORE])}\n".encode()
    assert right.count(line) == 1
    site.publish(
        name, make_wheel(record=right.replace(line, b",1\n").replace(b"vllm-1.0", b"vllm-2.0"), release="vllm-2.0")
    )
    one(cache).read(FILES)
    one(cache, "2.0").read([INIT])

    with pytest.raises(Failure) as caught:
        one(cache, "2.0").read(FILES)

    assert str(caught.value) == f"wrong bytes: {CORE} of {name}: its sha256 or size is not the one in RECORD"
