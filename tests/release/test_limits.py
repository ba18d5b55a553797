"""Limits on what wheels, indexes and servers may send: messages name them, and so do the documents."""

from __future__ import annotations

import io
import struct
import time
import tracemalloc
import zipfile
from functools import partial
from pathlib import Path

import pytest
from vpatch.matrix.releases import WheelFile
from vpatch.net import session
from vpatch.net.ranges import open_remote
from vpatch.net.session import LIMITS, Pace, RefusedError
from vpatch.net.session import size as formatted
from vpatch.release.index import find_wheel
from vpatch.release.index_config import open_session, read_settings

from tests.drip import DRIPS, dripping
from tests.failures import problem_of
from tests.loopback import NAME, SOURCES, IndexServer, make_wheel, record_of
from tests.paths import ROOT
from tests.release.conftest import Refusal

BOMB = "vllm/bomb.py"


def moved(wheel: bytes, by: int) -> bytes:
    """Move the directory's recorded start, so that every file seems to begin earlier than it does."""
    at = wheel.rindex(b"PK\5\6") + 16
    (offset,) = struct.unpack_from("<I", wheel, at)
    return wheel[:at] + struct.pack("<I", offset + by) + wheel[at + 4 :]


def test_a_file_that_begins_before_the_wheel(index: IndexServer, refusal: Refusal) -> None:
    line = refusal(moved(make_wheel(), 1000))

    assert line == f"damaged wheel: {index.url}/files/{NAME}: vllm/__init__.py begins at -1,000, outside of it"
    assert all("--" not in span and "=-" not in span[7:] for span in index.spans())
    assert len(index.spans()) == 1


def test_a_wheel_on_disk_that_lies_so(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(moved(make_wheel(), 1000))

    line = str(problem_of(WheelFile(path).read, []))
    assert line == f"damaged wheel: {path}: vllm/__init__.py begins at -1,000, outside of it"


def test_a_file_that_unpacks_to_more_than_a_file_may_have(refusal: Refusal) -> None:
    line = refusal(make_wheel({BOMB: bytes(LIMITS.file + 1)}))

    assert line == f"too large: {BOMB}: 67,108,865 bytes unpacked, and a file may have 64 MiB"


def test_a_file_that_unpacks_to_more_than_it_says(refusal: Refusal) -> None:
    size = 60 << 20
    wheel = make_wheel({BOMB: bytes(size)}, record=record_of({**SOURCES, "vllm/_C.abi3.so": b"", BOMB: bytes(5)}))
    tracemalloc.start()
    try:
        line = refusal(wheel.replace(struct.pack("<I", size), struct.pack("<I", 5)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert line == f"damaged wheel: {BOMB}: bad CRC-32 for file '{BOMB}'"
    assert peak < 30 << 20


def test_all_that_is_read(monkeypatch: pytest.MonkeyPatch, refusal: Refusal) -> None:
    monkeypatch.setattr(LIMITS, "files", 1 << 20)

    line = refusal(make_wheel({BOMB: bytes(1 << 20)}))

    assert line.startswith("too large: 9 files: 1,04")
    assert line.endswith(" bytes unpacked, and what is read may have 1 MiB")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_file_packed_as_no_wheel_is(index: IndexServer, refusal: Refusal, method: int) -> None:
    body = io.BytesIO(make_wheel())
    with zipfile.ZipFile(body, "a", method) as archive:
        archive.writestr(BOMB, b"x")

    assert refusal(body.getvalue()) == f"damaged wheel: {BOMB}: not packed as the files of a wheel are"


@pytest.mark.parametrize(
    ("name", "limit", "told"),
    [
        ("directory", 512, "damaged wheel: {url}: its directory has 673 bytes, and may have 512 bytes"),
        ("members", 3, "damaged wheel: {url}: it has 10 files, and may have 3"),
        ("wheel", 1 << 20, "cannot read: {url}: it has {size:,} bytes, and may have 1 MiB"),
    ],
)
def test_a_wheel_that_is_too_large(
    index: IndexServer, monkeypatch: pytest.MonkeyPatch, refusal: Refusal, name: str, limit: int, told: str
) -> None:
    wheel = make_wheel()
    monkeypatch.setattr(LIMITS, name, limit)

    assert refusal(wheel) == told.format(url=f"{index.url}/files/{NAME}", size=len(wheel))


def test_a_whole_wheel_that_is_too_large(index: IndexServer, monkeypatch: pytest.MonkeyPatch, refusal: Refusal) -> None:
    index.ranges = "ignored"
    monkeypatch.setattr(LIMITS, "wheel", 1 << 20)

    assert refusal(index.files[NAME]) == f"cannot read: {index.url}/files/{NAME}: it has more than 1 MiB"


def test_gaps_between_files_are_not_kept_without_end(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    index.files["data"] = bytes(3 << 20)
    monkeypatch.setattr(LIMITS, "files", 1 << 20)
    with open_session(read_settings()) as asking, open_remote(asking, f"{index.url}/files/data") as file:
        assert "more than 1 MiB of it would be read" in str(problem_of(file.prefetch, [(0, 1 << 20)]))


def test_a_record_of_more_lines_than_a_wheel_has_files(monkeypatch: pytest.MonkeyPatch, refusal: Refusal) -> None:
    monkeypatch.setattr(LIMITS, "members", 12)

    line = refusal(make_wheel(record=b"a,b,c\n" * 13))
    assert line == "damaged wheel: vllm-1.0.dist-info/RECORD: it has more than 12 lines"


@pytest.mark.parametrize("page", ["html", "json"])
def test_an_index_page_that_is_too_large(index: IndexServer, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    index.page = page
    monkeypatch.setattr(LIMITS, "answer", 100)

    cause = "too large: an answer may have 100 bytes"
    assert str(problem_of(find_wheel, "1.0")) == f"package index failed: {index.url}/simple/: {cause}"


@pytest.mark.parametrize("kind", DRIPS)
@pytest.mark.parametrize("what", ["index", "wheel", "proxy"])
def test_a_server_that_drips(settings: Path, monkeypatch: pytest.MonkeyPatch, kind: str, what: str) -> None:
    monkeypatch.setattr(LIMITS, "grace", 0.2)
    monkeypatch.setattr(session, "BACKOFF", 0)
    began = time.monotonic()
    with dripping(kind) as host, open_session(read_settings()) as asking:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://{host if what == 'index' else 'index.example'}/simple/")
        monkeypatch.setenv("http_proxy", f"http://{host}" if what == "proxy" else "")
        ask = partial(open_remote, asking, f"http://{host}/wheel") if what == "wheel" else partial(find_wheel, "1.0")
        line = str(problem_of(ask))

    assert "too slow: " in line
    assert line.endswith("and 16 KiB a second are the least, after 0.2 s")
    assert time.monotonic() - began < 10


def test_a_server_that_is_slow_where_it_may_be() -> None:
    pace = Pace()
    pace.count(LIMITS.grace + 99, 100 * LIMITS.rate)
    pace.granted = 60.0
    pace.count(60.0, 0)

    with pytest.raises(RefusedError, match=r"^too slow: 1,638,400 bytes in 282.0 s, and 16 KiB a second are the least"):
        pace.count(3.0, 0)


def test_the_documents_name_every_limit() -> None:
    text = (ROOT / "docs/matrix.md").read_text()

    for limit in (LIMITS.wheel, LIMITS.directory, LIMITS.file, LIMITS.files, LIMITS.answer, LIMITS.rate):
        assert formatted(limit) in text
    assert f"64 MiB, and {LIMITS.listed:,} files" in text
    assert f"{LIMITS.members:,} files, each in at most {LIMITS.folders} folders" in text
    assert f"{LIMITS.grace:g} s" in text
