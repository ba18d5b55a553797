"""A file on a web server, read in ranges as if it were on disk, or whole if its server serves no ranges."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING

import requests

from vpatch.errors import Failure, Problem, naming
from vpatch.net import session as http
from vpatch.net import size
from vpatch.net.session import LIMITS, answers, cause, shown

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TAIL = 1 << 19  # bytes requested first: in most wheels the whole directory
GAP = 1 << 18  # bytes between two spans that cost less to read than another request
BLOCK = 1 << 16
ATTEMPTS = 3  # requests for one span, or for a whole file, before giving up

Span = tuple[int, int]  # first byte, byte after the last
Progress = Callable[[int, int], object]  # called with the bytes received and the bytes expected, which may grow

_COUNT = r"\d{1,18}"  # bytes; a server may send more digits than Python parses


class CutError(Exception):
    """The body ended before its end."""


class RemoteFile(io.RawIOBase):
    """A read-only, seekable file that keeps in memory only what was read of it.

    `name` is its address without user name, password and query, `size` its length in bytes, `received` the bytes that
    came so far. `etag` is the version of the file in the server's first answer: every later answer must have the same.
    Reading raises a `Failure` if the server does not send the bytes of this version.
    """

    def __init__(
        self, session: requests.Session, url: str, *, size: int = 0, etag: str = "", progress: Progress | None = None
    ) -> None:
        super().__init__()
        self.name, self.size, self.received = shown(url), size, 0
        self._session, self._url, self._etag = session, url, etag
        self._progress = progress or (lambda _done, _total: None)
        self._planned = self._position = 0
        self._pieces: list[tuple[int, bytearray]] = []  # each with its offset
        self._copy: IO[bytes] | None = None

    @property
    def whole(self) -> bool:
        """Whether the whole file was downloaded, because its server serves no ranges."""
        return self._copy is not None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position in bytes, as files do; this reads nothing."""
        self._position = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence])
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill `buffer` up to the end of the file; requests what `prefetch` did not bring."""
        view = memoryview(buffer).cast("B")
        start = self._position
        stop = max(start, min(start + len(view), self.size))
        if self._copy is not None:
            self._copy.seek(start)
            view[: stop - start] = self._copy.read(stop - start)
        else:
            self._read(self._missing(start, stop))
            for at, data in self._pieces:
                first, last = max(start, at), min(stop, at + len(data))
                if first < last:
                    view[first - start : last - start] = data[first - at : last - at]
        self._position = stop
        return stop - start

    def prefetch(self, spans: Iterable[Span]) -> None:
        """Read these spans now, in as few requests as make sense."""
        if not self.whole:
            self._read(gap for start, stop in _joined(spans) for gap in self._missing(start, min(stop, self.size)))

    def close(self) -> None:
        """Forget what was read."""
        self._pieces.clear()
        if self._copy is not None:
            self._copy.close()
        super().close()

    def _missing(self, start: int, stop: int) -> Iterator[Span]:
        """Yield the parts of a span that were not read yet."""
        for first, data in sorted(self._pieces):
            if first >= stop:
                break
            if first > start:
                yield start, first
            start = max(start, first + len(data))
        if start < stop:
            yield start, stop

    def _read(self, spans: Iterable[Span], answer: requests.Response | None = None) -> None:
        """Read exactly these spans; `answer` is a response that begins the first."""
        wanted = list(spans)
        expected = sum(stop - start for start, stop in wanted)
        if expected + sum(len(data) for _, data in self._pieces) > LIMITS.files:
            raise _unreadable(self._url, f"more than {size(LIMITS.files)} of it would be read")
        self._planned += expected
        for start, stop in wanted:
            self._pieces.append((start, self._span(start, stop, answer)))
            answer = None

    def _span(self, start: int, stop: int, answer: requests.Response | None) -> bytearray:
        """Read one span, continuing where the connection was cut."""
        data = bytearray()
        why = ""
        for _ in range(ATTEMPTS):
            try:
                with answer or self._request(start + len(data), stop) as response:
                    for block in blocks(response):
                        data += block
                        if start + len(data) > stop:
                            raise _unreadable(self._url, f"more bytes came than the {stop - start} asked for")
                        self.received += len(block)
                        self._progress(self.received, self._planned)
            except CutError as error:
                why = str(error)
            if start + len(data) == stop:
                return data
            answer = None
        raise _unreadable(self._url, f"cut off {ATTEMPTS} times: {why or 'the body was short'}")

    def _request(self, start: int, stop: int) -> requests.Response:
        response = _get(self._session, self._url, f"bytes={start}-{stop - 1}", self._etag)
        why = ""
        if response.status_code == requests.codes.ok:  # `If-Range` found another file, or ranges ended
            why = "it changed while it was read, or its server stopped serving ranges"
        elif response.status_code != requests.codes.partial_content:
            why = answers(response)
        elif _content_range(response) != (start, stop, self.size) or response.headers.get("ETag", "") != self._etag:
            why = "its server sent another range, or the file changed while it was read"
        if why:
            response.close()
            raise _unreadable(self._url, why)
        return response

    def _download(self, answer: requests.Response | None) -> None:
        """Read the whole file into a temporary one, from its beginning after each cut."""
        with naming("cannot write", "temporary file"), ExitStack() as unless_done:
            copy = unless_done.enter_context(tempfile.TemporaryFile())
            self._fill(copy, answer)
            unless_done.pop_all()
            self._copy = copy

    def _fill(self, copy: IO[bytes], answer: requests.Response | None) -> None:
        why = ""
        for _ in range(ATTEMPTS):
            copy.seek(0)
            try:
                with answer or _get(self._session, self._url) as response:
                    if response.status_code != requests.codes.ok:
                        raise _unreadable(self._url, answers(response))
                    length = re.fullmatch(_COUNT, response.headers.get("Content-Length", ""))
                    total = int(length[0]) if length else 0
                    for block in blocks(response):
                        copy.write(block)
                        self.received += len(block)
                        self._progress(copy.tell(), max(total, copy.tell()))
                        if copy.tell() > LIMITS.wheel:
                            raise _unreadable(self._url, f"it has more than {size(LIMITS.wheel)}")
                self.size = copy.tell()
                return
            except CutError as error:
                why = str(error)
            answer = None
        raise _unreadable(self._url, f"cut off {ATTEMPTS} times: {why}")


def open_remote(session: requests.Session, url: str, *, progress: Progress | None = None) -> RemoteFile:
    """Open the file at `url` with its last bytes already read; close it after use. The session stays open.

    A server that ignores or refuses ranges sends the whole file, once, into a temporary file.

    Raises:
        Failure: the server does not answer, has no such file, cuts every connection, or sends something else.
    """
    with _get(session, url, f"bytes=-{TAIL}") as answer:
        if answer.status_code != requests.codes.partial_content:
            file = RemoteFile(session, url, progress=progress)
            file._download(answer if answer.status_code == requests.codes.ok else None)
            return file
        start, stop, length = _content_range(answer) or (-1, -1, 0)
        if stop != length or start != max(0, length - TAIL):
            raise _unreadable(url, "its server sent another range than the end of the file")
        if length > LIMITS.wheel:
            raise _unreadable(url, f"it has {length:,} bytes, and may have {size(LIMITS.wheel)}")
        file = RemoteFile(session, url, size=length, etag=answer.headers.get("ETag", ""), progress=progress)
        file._read([(start, length)], answer)
        return file


def _get(session: requests.Session, url: str, span: str = "", etag: str = "") -> requests.Response:
    headers = {"Accept-Encoding": "identity"}  # a range of a compressed body would be of no use
    if span:
        headers["Range"] = span
    if etag and not etag.startswith("W/"):  # If-Range takes strong ones only
        headers["If-Range"] = etag
    try:
        return session.get(url, headers=headers, stream=True, timeout=http.TIMEOUT)
    except (OSError, ValueError) as error:  # ValueError: addresses that urllib3 and requests refuse
        raise _unreadable(url, cause(error)) from error


def blocks(response: requests.Response) -> Iterator[bytes]:
    """Yield the body as it comes; raise CutError if it ends before its end."""
    try:
        yield from response.iter_content(BLOCK)
    except requests.RequestException as error:
        raise CutError(cause(error)) from error


def _unreadable(url: str, why: str) -> Failure:
    return Failure(Problem("cannot read", shown(url), why))


def _content_range(response: requests.Response) -> tuple[int, int, int] | None:
    """Parse the first byte, the byte after the last, and the length of the whole file."""
    found = re.fullmatch(rf"bytes ({_COUNT})-({_COUNT})/({_COUNT})", response.headers.get("Content-Range", ""))
    return (int(found[1]), int(found[2]) + 1, int(found[3])) if found else None


def _joined(spans: Iterable[Span]) -> Sequence[Span]:
    """Join spans that are at most `GAP` bytes apart."""
    joined: list[Span] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1] + GAP:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined
