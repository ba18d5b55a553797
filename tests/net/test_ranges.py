"""A remote file reads like a local one, in few requests; a server that lies or fails is noticed."""

from __future__ import annotations

import hashlib
import io
import random
import re
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from vpatch.errors import Failure
from vpatch.net import ranges
from vpatch.net import session as http
from vpatch.net.ranges import Progress, RemoteFile, open_remote
from vpatch.net.session import Session

from tests.failures import problem_of
from tests.loopback import IndexServer

DATA = hashlib.shake_256(b"data").digest(2_000_000)
EDGE = len(DATA) - ranges.TAIL  # start of the part that is read first


@contextmanager
def remote(index: IndexServer, progress: Progress | None = None) -> Iterator[RemoteFile]:
    index.files.setdefault("data", DATA)
    with Session() as session, open_remote(session, f"{index.url}/files/data", progress=progress) as file:
        yield file


def failing(index: IndexServer) -> str:
    """Read the middle of the file; return the message of the failure."""

    def read() -> None:
        with remote(index) as file:
            file.prefetch([(1000, 300_000)])

    problem = problem_of(read)
    assert (problem.what, problem.where, problem.scope) == ("cannot read", f"{index.url}/files/data", "")
    return problem.cause


@pytest.mark.parametrize("kind", ["yes", "ignored"])
@pytest.mark.parametrize("etag", ['"one"', 'W/"weak"', ""])
def test_reads_like_a_local_file(index: IndexServer, kind: str, etag: str) -> None:
    index.ranges = kind
    index.etag = etag
    chance = random.Random(7)  # noqa: S311 - the same on every run
    local = io.BytesIO(DATA)
    with remote(index) as file:
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


def test_reads_a_file_shorter_than_its_first_request(index: IndexServer) -> None:
    index.files["data"] = b"short"

    with remote(index) as file:
        assert file.read() == b"short"

    assert index.headers[0]["Accept-Encoding"] == "identity"
    assert index.spans() == [f"bytes=-{ranges.TAIL}"]


def test_joins_spans_that_lie_close_together(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "GAP", 1000)
    wanted = [(500_000, 500_100), (0, 100), (1100, 1200), (2201, 2300), (150, 1300), (EDGE - 50, EDGE + 50)]
    with remote(index) as file:
        file.prefetch(wanted)
        asked = index.spans()
        for start, stop in wanted:
            file.seek(start)
            assert file.read(stop - start) == DATA[start:stop]
        file.prefetch([(10, 20), (EDGE, len(DATA) + 5)])

        assert asked == index.spans()
        assert asked[1:] == ["bytes=0-2299", "bytes=500000-500099", f"bytes={EDGE - 50}-{EDGE - 1}"]
        assert file.received == ranges.TAIL + 2300 + 100 + 50


def test_prefetching_nothing_asks_for_nothing(index: IndexServer) -> None:
    with remote(index) as file:
        file.prefetch([])

    assert len(index.spans()) == 1


def test_reports_progress_up_to_what_was_planned(index: IndexServer) -> None:
    calls: list[tuple[int, int]] = []
    with remote(index, lambda done, total: calls.append((done, total))) as file:
        assert calls[-1] == (ranges.TAIL, ranges.TAIL)
        file.prefetch([(0, 200_000), (900_000, 1_000_000)])

    assert calls[-1] == (ranges.TAIL + 300_000, ranges.TAIL + 300_000)
    assert calls == sorted(calls)
    assert len(calls) > 5


# --- servers without ranges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ignored", "416", "501", "400"])
def test_reads_the_whole_file_where_ranges_are_refused(index: IndexServer, kind: str) -> None:
    index.ranges = kind
    calls: list[tuple[int, int]] = []
    with remote(index, lambda done, total: calls.append((done, total))) as file:
        file.prefetch([(0, 1000)])

        assert file.whole
        assert (file.size, file.received) == (len(DATA), len(DATA))
        assert file.read() == DATA
    assert calls[-1] == (len(DATA), len(DATA))
    assert {total for _, total in calls} == {len(DATA)}
    assert len(calls) > 5


def test_reads_a_whole_file_of_a_length_too_long_to_be_read(index: IndexServer) -> None:
    index.ranges = "unmeasured"
    with remote(index) as file:
        assert file.read() == DATA


def test_keeps_a_whole_file_out_of_memory(index: IndexServer) -> None:
    index.ranges = "ignored"
    index.files["data"] = bytes(40_000_000)
    tracemalloc.start()
    try:
        with remote(index) as file:
            file.seek(-10, io.SEEK_END)
            assert file.read() == bytes(10)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 4_000_000


def test_starts_a_whole_file_again_after_a_cut(index: IndexServer) -> None:
    index.ranges = "ignored"
    index.cuts = 2

    with remote(index) as file:
        assert file.read() == DATA
        assert file.received > len(DATA)


@pytest.mark.parametrize("kind", ["yes", "ignored"])
def test_gives_up_when_every_body_is_cut(index: IndexServer, kind: str) -> None:
    index.ranges = kind
    index.cuts = 99

    assert failing(index).startswith("cut off 3 times: incompleteRead(")
    assert len(index.spans()) == 3


def test_says_that_the_temporary_file_cannot_be_written(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    index.ranges = "ignored"
    monkeypatch.setattr("tempfile.TemporaryFile", full)

    with pytest.raises(Failure, match=r"^cannot write: temporary file: no space left on device$"), remote(index):
        pass


# --- servers that fail -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [1, 2])
def test_goes_on_where_the_connection_was_cut(index: IndexServer, cuts: int) -> None:
    with remote(index) as file:
        index.cuts = cuts
        file.prefetch([(0, 1_000_000)])
        spans = index.spans()[1:]
        file.seek(0)
        assert file.read(1_000_000) == DATA[:1_000_000]

    assert len(spans) == cuts + 1
    starts = [int(re.findall(r"\d+", span)[0]) for span in spans]
    for start, cut in zip(starts, (0, 500_000, 720_000), strict=False):
        assert cut - 2 * ranges.BLOCK < start <= cut + ranges.BLOCK


def test_goes_on_where_the_first_answer_was_cut(index: IndexServer) -> None:
    index.cuts = 1
    with remote(index) as file:
        assert file.received == ranges.TAIL

    assert index.spans() == [f"bytes=-{ranges.TAIL}", f"bytes={EDGE + ranges.TAIL // 2}-{len(DATA) - 1}"]


OTHER_RANGES = ("elsewhere", "unsaid", "grown", "endless", "replaced")


@pytest.mark.parametrize(
    ("lie", "line"),
    [
        *((lie, "its server sent another range, or the file changed while it was read") for lie in OTHER_RANGES),
        ("ignored", "it changed while it was read, or its server stopped serving ranges"),
        ("404", "the server answers 404 not found"),
        ("overlong", "more bytes came than the 299000 asked for"),
    ],
)
def test_finds_out_a_lie(index: IndexServer, lie: str, line: str) -> None:
    with remote(index) as file:
        index.ranges = lie
        assert str(problem_of(file.prefetch, [(1000, 300_000)])) == f"cannot read: {index.url}/files/data: {line}"


def test_goes_on_after_bodies_that_are_short(index: IndexServer) -> None:
    with remote(index) as file:
        index.ranges = "short"
        assert problem_of(file.prefetch, [(0, 100)]).cause.startswith("cut off 3 times: the body was short")

    assert index.spans()[1:] == ["bytes=0-99", "bytes=99-99", "bytes=99-99"]


@pytest.mark.parametrize("lie", ["elsewhere", "unsaid", "endless"])
def test_finds_out_a_lie_in_the_first_answer(index: IndexServer, lie: str) -> None:
    index.ranges = lie

    assert failing(index) == "its server sent another range than the end of the file"


def test_finds_out_that_the_file_was_replaced(index: IndexServer) -> None:
    with remote(index) as file:
        index.etag = '"two"'
        assert "it changed while it was read" in str(problem_of(file.read, 10))

    assert [headers.get("If-Range") for headers in index.headers] == [None, '"one"']


def test_waits_for_a_busy_server(index: IndexServer) -> None:
    index.failures = 2
    with remote(index) as file:
        index.failures = 2
        assert file.read(10) == DATA[:10]


def test_says_what_the_server_answers(index: IndexServer) -> None:
    index.failures = 99

    assert failing(index) == "the server answers 503 service unavailable"

    index.failures = 0
    index.login = "somebody:else"

    assert failing(index) == "the server answers 401 unauthorized"


def test_says_that_the_server_is_slow(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT", 0.1)
    index.stalls = "/files/"

    assert failing(index) == "no answer within 0.1 s"


def test_says_that_there_is_no_server() -> None:
    with Session() as session:
        problem = problem_of(open_remote, session, "ftp://me:secret@127.0.0.1/wheel?token=secret")

    assert str(problem) == "cannot read: ftp://127.0.0.1/wheel: invalid schema"
