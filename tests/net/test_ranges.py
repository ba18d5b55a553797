"""A remote file reads as a local one, in few requests, and a server that lies or fails is found out."""

from __future__ import annotations

import hashlib
import io
import random
import re
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from vpatch.errors import Failure
from vpatch.net import error_text, ranges
from vpatch.net.ranges import Progress, RemoteFile, open_remote
from vpatch.net.session import Session

if TYPE_CHECKING:
    from tests.loopback import Site

DATA = hashlib.shake_256(b"data").digest(2_000_000)
EDGE = len(DATA) - ranges.TAIL  # where the part begins that is read at once


@contextmanager
def remote(site: Site, progress: Progress | None = None) -> Iterator[RemoteFile]:
    site.files.setdefault("data", DATA)
    with (
        Session() as session,
        open_remote(session, f"{site.url}/files/data", progress=progress) as file,
    ):
        yield file


def failing(site: Site) -> str:
    """Give the one line that a read of the middle of the file ends with."""
    with pytest.raises(Failure) as caught, remote(site) as file:
        file.prefetch([(1000, 300_000)])
    assert len(caught.value.problems) == 1
    prefix = f"cannot read: {site.url}/files/data: "
    assert str(caught.value).startswith(prefix)
    return str(caught.value).removeprefix(prefix)


@pytest.mark.parametrize("kind", ["yes", "ignored"])
@pytest.mark.parametrize("etag", ['"one"', 'W/"weak"', ""])
def test_reads_like_a_local_file(site: Site, kind: str, etag: str) -> None:
    site.ranges = kind
    site.etag = etag
    chance = random.Random(7)  # noqa: S311 - the same on every run
    local = io.BytesIO(DATA)
    with remote(site) as file:
        assert (file.readable(), file.seekable(), file.writable()) == (True, True, False)
        assert file.size == len(DATA)
        for _ in range(300):
            offset, whence = chance.choice(
                [
                    (chance.randrange(len(DATA) + 1000), io.SEEK_SET),
                    (-chance.randrange(len(DATA)), io.SEEK_END),
                    (chance.randrange(100_000), io.SEEK_CUR),
                ]
            )
            assert file.seek(offset, whence) == local.seek(offset, whence) == file.tell()
            length = chance.choice([0, 1, 100, 10_000])
            assert file.read(length) == local.read(length)
        file.prefetch([(chance.randrange(len(DATA)), len(DATA))])
        file.seek(0)
        assert file.read() == DATA
        assert file.received == len(DATA)  # no byte twice


def test_reads_a_file_shorter_than_its_first_request(site: Site) -> None:
    site.files["data"] = b"short"

    with remote(site) as file:
        assert file.read() == b"short"

    assert site.headers[0]["Accept-Encoding"] == "identity"
    assert site.spans() == [f"bytes=-{ranges.TAIL}"]


def test_joins_spans_that_lie_close_together(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "GAP", 1000)
    wanted = [(500_000, 500_100), (0, 100), (1100, 1200), (2201, 2300), (150, 1300), (EDGE - 50, EDGE + 50)]
    with remote(site) as file:
        file.prefetch(wanted)
        asked = site.spans()
        for start, stop in wanted:
            file.seek(start)
            assert file.read(stop - start) == DATA[start:stop]
        file.prefetch([(10, 20), (EDGE, len(DATA) + 5)])

        assert asked == site.spans()
        assert asked[1:] == ["bytes=0-2299", "bytes=500000-500099", f"bytes={EDGE - 50}-{EDGE - 1}"]
        assert file.received == ranges.TAIL + 2300 + 100 + 50


def test_prefetching_nothing_asks_for_nothing(site: Site) -> None:
    with remote(site) as file:
        file.prefetch([])

    assert len(site.spans()) == 1


def test_reports_progress_up_to_what_was_planned(site: Site) -> None:
    calls: list[tuple[int, int]] = []
    with remote(site, lambda done, total: calls.append((done, total))) as file:
        assert calls[-1] == (ranges.TAIL, ranges.TAIL)
        file.prefetch([(0, 200_000), (900_000, 1_000_000)])

    assert calls[-1] == (ranges.TAIL + 300_000, ranges.TAIL + 300_000)
    assert calls == sorted(calls)
    assert len(calls) > 5


# --- servers without ranges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ignored", "416", "501", "400"])
def test_reads_the_whole_file_where_ranges_are_refused(site: Site, kind: str) -> None:
    site.ranges = kind
    calls: list[tuple[int, int]] = []
    with remote(site, lambda done, total: calls.append((done, total))) as file:
        file.prefetch([(0, 1000)])

        assert file.whole
        assert (file.size, file.received) == (len(DATA), len(DATA))
        assert file.read() == DATA
    assert calls[-1] == (len(DATA), len(DATA))
    assert {total for _, total in calls} == {len(DATA)}
    assert len(calls) > 5


def test_reads_a_whole_file_of_a_length_too_long_to_be_read(site: Site) -> None:
    site.ranges = "unmeasured"
    with remote(site) as file:
        assert file.read() == DATA


def test_keeps_a_whole_file_out_of_memory(site: Site) -> None:
    site.ranges = "ignored"
    site.files["data"] = bytes(40_000_000)
    tracemalloc.start()
    try:
        with remote(site) as file:
            file.seek(-10, io.SEEK_END)
            assert file.read() == bytes(10)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 4_000_000


def test_starts_a_whole_file_again_after_a_cut(site: Site) -> None:
    site.ranges = "ignored"
    site.cuts = 2

    with remote(site) as file:
        assert file.read() == DATA
        assert file.received > len(DATA)


def test_gives_up_on_a_whole_file_that_is_always_cut(site: Site) -> None:
    site.ranges = "ignored"
    site.cuts = 99

    assert failing(site).startswith("cut off 3 times: ")
    assert len(site.spans()) == 3


def test_says_that_the_temporary_file_cannot_be_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    site.ranges = "ignored"
    monkeypatch.setattr("tempfile.TemporaryFile", full)

    with pytest.raises(Failure, match=r"^cannot write: temporary file: no space left on device$"), remote(site):
        pass


# --- servers that fail -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [1, 2])
def test_goes_on_where_the_connection_was_cut(site: Site, cuts: int) -> None:
    with remote(site) as file:
        site.cuts = cuts
        file.prefetch([(0, 1_000_000)])
        spans = site.spans()[1:]
        file.seek(0)
        assert file.read(1_000_000) == DATA[:1_000_000]

    assert len(spans) == cuts + 1
    starts = [int(re.findall(r"\d+", span)[0]) for span in spans]
    for start, cut in zip(starts, (0, 500_000, 720_000), strict=False):
        assert cut - 2 * ranges.BLOCK < start <= cut + ranges.BLOCK


def test_goes_on_where_the_first_answer_was_cut(site: Site) -> None:
    site.cuts = 1
    with remote(site) as file:
        assert file.received == ranges.TAIL

    assert site.spans() == [f"bytes=-{ranges.TAIL}", f"bytes={EDGE + ranges.TAIL // 2}-{len(DATA) - 1}"]


def test_gives_up_when_every_body_is_cut(site: Site) -> None:
    site.cuts = 99

    assert failing(site).startswith("cut off 3 times: incompleteRead(")


@pytest.mark.parametrize(
    ("lie", "line"),
    [
        ("elsewhere", "its server sent another range, or the file changed while it was read"),
        ("unsaid", "its server sent another range, or the file changed while it was read"),
        ("grown", "its server sent another range, or the file changed while it was read"),
        ("endless", "its server sent another range, or the file changed while it was read"),
        ("replaced", "its server sent another range, or the file changed while it was read"),
        ("ignored", "it changed while it was read, or its server stopped serving ranges"),
        ("404", "the server answers 404 not found"),
        ("overlong", "more bytes came than the 299000 asked for"),
    ],
)
def test_finds_out_a_lie(site: Site, lie: str, line: str) -> None:
    with remote(site) as file:
        site.ranges = lie
        with pytest.raises(Failure) as caught:
            file.prefetch([(1000, 300_000)])

    assert str(caught.value) == f"cannot read: {site.url}/files/data: {line}"


def test_goes_on_after_bodies_that_are_short(site: Site) -> None:
    with remote(site) as file:
        site.ranges = "short"
        with pytest.raises(Failure, match="cut off 3 times: the body was short"):
            file.prefetch([(0, 100)])

    assert site.spans()[1:] == ["bytes=0-99", "bytes=99-99", "bytes=99-99"]


@pytest.mark.parametrize("lie", ["elsewhere", "unsaid", "endless"])
def test_finds_out_a_lie_in_the_first_answer(site: Site, lie: str) -> None:
    site.ranges = lie

    assert failing(site) == "its server sent another range than the end of the file"


def test_finds_out_that_the_file_was_replaced(site: Site) -> None:
    with remote(site) as file:
        site.etag = '"two"'
        with pytest.raises(Failure, match="it changed while it was read"):
            file.read(10)

    assert [headers.get("If-Range") for headers in site.headers] == [None, '"one"']


def test_waits_for_a_busy_server(site: Site) -> None:
    site.failures = 2
    with remote(site) as file:
        site.failures = 2
        assert file.read(10) == DATA[:10]


def test_says_what_the_server_answers(site: Site) -> None:
    site.failures = 99

    assert failing(site) == "the server answers 503 service unavailable"

    site.failures = 0
    site.login = "somebody:else"

    assert failing(site) == "the server answers 401 unauthorized"


def test_says_that_the_server_is_slow(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_text, "TIMEOUT", 0.1)
    site.stalls = "/files/"

    assert failing(site) == "no answer within 0.1 s"


def test_says_that_there_is_no_server() -> None:
    with Session() as session, pytest.raises(Failure) as caught:
        open_remote(session, "ftp://me:secret@127.0.0.1/wheel?token=secret")

    assert str(caught.value) == "cannot read: ftp://127.0.0.1/wheel: invalid schema"
