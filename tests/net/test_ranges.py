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
from vpatch.net.session import LIMITS, Session

from tests.failures import problem_of
from tests.loopback import IndexServer
from tests.tiers import deep

DATA = hashlib.shake_256(b"data").digest(2_000_000)
EDGE = len(DATA) - ranges.TAIL  # start of the part that is read first


@contextmanager
def remote(index: IndexServer, progress: Progress | None = None) -> Iterator[RemoteFile]:
    index.files.setdefault("data", DATA)
    with Session() as session, open_remote(session, f"{index.url}/files/data", progress=progress) as file:
        yield file


@pytest.mark.parametrize(
    ("kind", "etag"),
    [("yes", '"one"'), ("ignored", ""), *(deep(*one) for one in (("yes", 'W/"weak"'), ("yes", ""), ("ignored", "x")))],
)
def test_it_reads_like_a_local_file(index: IndexServer, kind: str, etag: str) -> None:
    index.ranges, index.etag = kind, etag
    chance = random.Random(7)  # noqa: S311 - the same on every run
    local = io.BytesIO(DATA)
    with remote(index) as file:
        assert (file.readable(), file.seekable(), file.writable()) == (True, True, False)
        assert file.size == len(DATA)
        for _ in range(40):
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


def test_a_file_shorter_than_the_first_request(index: IndexServer) -> None:
    index.files["data"] = b"short"

    with remote(index) as file:
        file.prefetch([])
        assert file.read() == b"short"

    assert index.headers[0]["Accept-Encoding"] == "identity"
    assert index.spans() == [f"bytes=-{ranges.TAIL}"]


def test_spans_that_lie_close_together_are_joined(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_gaps_between_spans_are_not_kept_without_end(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "files", 1 << 20)
    with remote(index) as file:
        assert "more than 1 MiB of it would be read" in str(problem_of(file.prefetch, [(0, 1 << 20)]))


def test_progress_reaches_what_was_planned(index: IndexServer) -> None:
    calls: list[tuple[int, int]] = []
    with remote(index, lambda done, total: calls.append((done, total))) as file:
        assert calls[-1] == (ranges.TAIL, ranges.TAIL)
        file.prefetch([(0, 200_000), (900_000, 1_000_000)])

    assert calls[-1] == (ranges.TAIL + 300_000, ranges.TAIL + 300_000)
    assert calls == sorted(calls)
    assert len(calls) > 5


# --- servers without ranges ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "cuts"), [("ignored", 0), ("ignored", 2), ("416", 0), ("unmeasured", 0), deep("501", 0), deep("400", 0)]
)
def test_the_whole_file_is_read_where_ranges_are_refused(index: IndexServer, kind: str, cuts: int) -> None:
    """Unmeasured: its length has more digits than Python reads. After a cut it begins again."""
    index.ranges, index.cuts = kind, cuts
    calls: list[tuple[int, int]] = []
    with remote(index, lambda done, total: calls.append((done, total))) as file:
        file.prefetch([(0, 1000)])

        assert (file.whole, file.size, file.read()) == (True, len(DATA), DATA)
        assert (file.received > len(DATA)) == bool(cuts)
    assert calls[-1] == (len(DATA), len(DATA))
    assert kind == "unmeasured" or {total for _, total in calls} == {len(DATA)}
    assert len(calls) > 5


def test_a_whole_file_is_kept_out_of_memory(index: IndexServer) -> None:
    index.ranges = "ignored"
    index.files["data"] = bytes(20_000_000)
    tracemalloc.start()
    try:
        with remote(index) as file:
            file.seek(-10, io.SEEK_END)
            assert file.read() == bytes(10)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 4_000_000


def test_a_temporary_file_that_cannot_be_written(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    index.ranges = "ignored"
    monkeypatch.setattr("tempfile.TemporaryFile", full)

    with pytest.raises(Failure, match=r"^cannot write: temporary file: no space left on device$"), remote(index):
        pass


# --- servers that fail -----------------------------------------------------------------------------------------


def test_reading_goes_on_where_the_connection_was_cut(index: IndexServer) -> None:
    with remote(index) as file:
        index.cuts, index.failures = 2, 2  # and it is busy
        file.prefetch([(0, 1_000_000)])
        spans = index.spans()[1:]
        file.seek(0)
        assert file.read(1_000_000) == DATA[:1_000_000]

    starts = [int(re.findall(r"\d+", span)[0]) for span in spans[2:]]
    for start, cut in zip(starts, (0, 500_000, 720_000), strict=True):
        assert cut - 2 * ranges.BLOCK < start <= cut + ranges.BLOCK


def test_reading_goes_on_where_the_first_answer_was_cut(index: IndexServer) -> None:
    index.cuts = 1
    with remote(index) as file:
        assert file.received == ranges.TAIL

    assert index.spans() == [f"bytes=-{ranges.TAIL}", f"bytes={EDGE + ranges.TAIL // 2}-{len(DATA) - 1}"]


def test_bodies_that_are_short_are_asked_for_again(index: IndexServer) -> None:
    with remote(index) as file:
        index.ranges = "short"
        assert problem_of(file.prefetch, [(0, 100)]).cause.startswith("cut off 3 times: the body was short")

    assert index.spans()[1:] == ["bytes=0-99", "bytes=99-99", "bytes=99-99"]


OTHER, OTHER_END = "another range, or the file changed while it was read", "another range than the end of the file"
CHANGED = "it changed while it was read, or its server stopped serving ranges"


@pytest.mark.parametrize(
    ("trouble", "begun", "cause"),
    [
        *(({"ranges": lie}, True, f"its server sent {OTHER}") for lie in ("elsewhere", "unsaid", "grown", "endless")),
        ({"ranges": "replaced"}, True, f"its server sent {OTHER}"),
        ({"ranges": "ignored"}, True, CHANGED),
        ({"etag": '"two"'}, True, CHANGED),
        ({"ranges": "404"}, True, "the server answers 404 not found"),
        ({"ranges": "overlong"}, True, "more bytes came than the 299000 asked for"),
        *(({"ranges": lie}, False, f"its server sent {OTHER_END}") for lie in ("elsewhere", "unsaid", "endless")),
        ({"failures": 99}, False, "the server answers 503 service unavailable"),
        ({"login": "somebody:else"}, False, "the server answers 401 unauthorized"),
        ({"stalls": "/files/"}, False, "no answer within 0.1 s"),
        ({"cuts": 99}, False, "cut off 3 times: incompleteRead("),
        ({"cuts": 99, "ranges": "ignored"}, False, "cut off 3 times: incompleteRead("),
    ],
)
def test_a_server_that_lies_or_fails(
    index: IndexServer, monkeypatch: pytest.MonkeyPatch, trouble: dict[str, object], *, begun: bool, cause: str
) -> None:
    """Begun: it fails from the second answer on."""
    monkeypatch.setattr(http, "TIMEOUT", 0.1 if "stalls" in trouble else 5.0)

    def read() -> None:
        if not begun:
            vars(index).update(trouble)
        with remote(index) as file:
            vars(index).update(trouble)
            file.prefetch([(1000, 300_000)])

    problem = problem_of(read)

    assert (problem.what, problem.where, problem.scope) == ("cannot read", f"{index.url}/files/data", "")
    assert problem.cause.startswith(cause)
    assert problem.cause == cause or cause.endswith("(")
    conditions = [headers.get("If-Range") for headers in index.headers[:2]]
    assert not begun or conditions == [None, '"one"'][: len(conditions)]


def test_an_address_of_no_server() -> None:
    with Session() as session:
        problem = problem_of(open_remote, session, "ftp://me:secret@127.0.0.1/wheel?token=secret")

    assert str(problem) == "cannot read: ftp://127.0.0.1/wheel: invalid schema"
