"""A network that alters or fails: the result is right or one clear line, and the cache keeps nothing wrong."""

from __future__ import annotations

import pytest
from vpatch.matrix.cache import LISTINGS, Cache
from vpatch.net import session

from tests.failures import problem_of
from tests.loopback import NAME, IndexServer, make_wheel
from tests.matrix.conftest import CORE, FILES, INIT, WANTED, release_of


def kept(cache: Cache) -> list[str]:
    """List the cache's files of wheels."""
    files = (path.relative_to(cache.folder).as_posix() for path in cache.folder.rglob("*") if path.is_file())
    return sorted(name for name in files if not name.startswith(f"{LISTINGS}/"))


def refusal(cache: Cache) -> str:
    """Return why a release is refused, of which nothing more than before is kept."""
    before = kept(cache)
    line = str(problem_of(release_of(cache).read, FILES))
    assert kept(cache) == before
    return line


def flipped(wheel: bytes, name: bytes, after: int = 4) -> bytes:
    data = bytearray(wheel)
    data[data.index(name) + len(name) + after] ^= 1
    return bytes(data)


def test_altered_in_transit(index: IndexServer, cache: Cache) -> None:
    """Whole as a zip file, its checksums too; or by one bit. What came before stays."""
    right = index.wanted()["vllm-1.0.dist-info/RECORD"]
    index.altered[NAME] = make_wheel({CORE: b"evil = 1\n"}, right)
    assert refusal(cache) == f"wrong bytes: {CORE} of {NAME}: its sha256 or size is not the one in RECORD"
    index.ranges = "ignored"
    url = f"{index.url}/files/{NAME}"
    assert refusal(cache) == f"wrong bytes: {url}: its sha256 is not the one on the index"
    assert kept(cache) == []

    index.ranges = "yes"
    for _ in range(2):
        index.altered[NAME] = flipped(index.files[NAME], CORE.encode())
        assert refusal(cache).startswith(f"damaged wheel: {CORE} of {NAME}: ")
        index.altered.clear()
        release_of(cache).read([INIT])
        index.stalls = "/files/"
        assert release_of(cache).read([INIT]).received == 0
        index.stalls = ""
    assert release_of(cache).read(FILES).files == WANTED


def test_another_record_than_before_is_refused(index: IndexServer, cache: Cache) -> None:
    release_of(cache).read([INIT])
    index.altered[NAME] = make_wheel({CORE: b"evil = 1\n"})  # with a RECORD to match

    assert refusal(cache) == (
        f"wrong bytes: vllm-1.0.dist-info/RECORD of {NAME}: it is not the one that came before: "
        "if that one was wrong, `vpatch cache --clear` forgets it"
    )


@pytest.mark.parametrize("trouble", [{"failures": 2, "busy": 500, "cuts": 1}, {"ranges": "ignored", "cuts": 2}])
def test_the_files_are_right_despite_the_trouble(index: IndexServer, cache: Cache, trouble: dict[str, object]) -> None:
    """tests/net has the other troubles, and those below."""
    release = release_of(cache)
    vars(index).update(trouble)

    tree = release.read(FILES)

    assert (tree.files, tree.size) == (WANTED, len(index.files[NAME]))
    assert release.read(FILES).received == 0


@pytest.mark.parametrize(
    ("trouble", "cause"), [({"cuts": 99}, "cut off 3 times: "), ({"stalls": "/files/"}, "no answer within 0.1 s")]
)
def test_says_in_one_line_what_the_server_did(
    index: IndexServer, cache: Cache, monkeypatch: pytest.MonkeyPatch, trouble: dict[str, object], cause: str
) -> None:
    monkeypatch.setattr(session, "TIMEOUT", 0.1)
    vars(index).update(trouble)

    line = refusal(cache)

    assert line.startswith(f"cannot read: {index.url}/files/{NAME}: {cause}")
    assert "\n" not in line
