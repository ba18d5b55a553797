"""A network or a server that fails: the result is right or one clear line, and the cache keeps nothing wrong."""

from __future__ import annotations

import pytest
from vpatch.installation import how_to_add
from vpatch.matrix.cache import LISTINGS, Cache
from vpatch.net import session

from tests.failures import problem_of
from tests.loopback import NAME, IndexServer, make_wheel
from tests.matrix.conftest import CORE, FILES, INIT, WANTED, release_of
from tests.processes import printed


def kept(cache: Cache) -> list[str]:
    """List the cache's files of wheels."""
    files = (path.relative_to(cache.folder).as_posix() for path in cache.folder.rglob("*") if path.is_file())
    return sorted(name for name in files if not name.startswith(f"{LISTINGS}/"))


# --- altered in transit ----------------------------------------------------------------------------------------


def flipped(wheel: bytes, name: bytes, after: int = 4) -> bytes:
    """Flip one bit in the body of a member."""
    data = bytearray(wheel)
    data[data.index(name) + len(name) + after] ^= 1
    return bytes(data)


@pytest.mark.parametrize("ranges", ["yes", "ignored"])
def test_an_altered_member_is_refused_and_nothing_is_kept(index: IndexServer, cache: Cache, ranges: str) -> None:
    index.ranges = ranges
    right = index.wanted()["vllm-1.0.dist-info/RECORD"]
    index.altered[NAME] = make_wheel({CORE: b"evil = 1\n"}, right)  # whole as a zip file, its checksums too

    assert str(problem_of(release_of(cache).read, FILES)) == {
        "yes": f"wrong bytes: {CORE} of {NAME}: its sha256 or size is not the one in RECORD",
        "ignored": f"wrong bytes: {index.url}/files/{NAME}: its sha256 is not the one on the index",
    }.get(ranges)
    assert kept(cache) == []

    index.altered.clear()
    assert release_of(cache).read(FILES).files == WANTED


def test_a_flipped_bit_is_refused_and_nothing_is_kept(index: IndexServer, cache: Cache) -> None:
    index.altered[NAME] = flipped(index.files[NAME], CORE.encode())

    assert str(problem_of(release_of(cache).read, FILES)).startswith(f"damaged wheel: {CORE} of {NAME}: ")
    assert kept(cache) == []


def test_what_came_before_is_kept_when_the_rest_is_altered(index: IndexServer, cache: Cache) -> None:
    release_of(cache).read([INIT])
    before = kept(cache)
    index.altered[NAME] = flipped(index.files[NAME], CORE.encode())

    problem_of(release_of(cache).read, FILES)

    assert kept(cache) == before
    assert release_of(cache).read([INIT]).received == 0


def test_another_record_than_before_is_refused(index: IndexServer, cache: Cache) -> None:
    release_of(cache).read([INIT])
    before = kept(cache)
    index.altered[NAME] = make_wheel({CORE: b"evil = 1\n"})  # with a RECORD to match

    assert str(problem_of(release_of(cache).read, FILES)) == (
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
def test_the_files_are_right_despite_the_trouble(index: IndexServer, cache: Cache, trouble: dict[str, object]) -> None:
    release = release_of(cache)
    for name, value in trouble.items():
        setattr(index, name, value)

    tree = release.read(FILES)

    assert tree.files == WANTED
    assert tree.size == len(index.files[NAME])
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
    index: IndexServer, cache: Cache, monkeypatch: pytest.MonkeyPatch, trouble: dict[str, object], cause: str
) -> None:
    release = release_of(cache)
    monkeypatch.setattr(session, "TIMEOUT", 0.1)
    for name, value in trouble.items():
        setattr(index, name, value)

    line = str(problem_of(release.read, FILES))

    assert line.startswith(f"cannot read: {index.url}/files/{NAME}: {cause}")
    assert "\n" not in line
    assert kept(cache) == []


def test_says_that_the_extra_is_not_installed() -> None:
    code = """
import sys
from vpatch.errors import Failure
sys.modules["requests"] = None
try:
    import vpatch.matrix.releases
except Failure as failure:
    print(failure)
import vpatch.matrix.trees
"""
    assert printed(code) == f"cannot fetch: requests: not installed: {how_to_add('fetch')}\n"
