"""A file on a web server, read in ranges as if it lay on disk, or whole where its server serves no ranges."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import requests
import urllib3

from vpatch.errors import Failure, Problem

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TIMEOUT = 20.0  # seconds of silence
ATTEMPTS = 3  # times that a body may be cut before vpatch gives up

TAIL = 1 << 19  # bytes asked for first: most wheels' whole directory
GAP = 1 << 18  # bytes between two spans that cost less to read than another request
BLOCK = 1 << 16

Span = tuple[int, int]  # first byte, byte after the last


class Progress(Protocol):
    """Hears how far a download is."""

    def __call__(self, done: int, total: int, /) -> None:
        """Take the bytes received and the bytes expected, which grow as more is asked for."""
        ...


class RemoteFile(io.RawIOBase):
    """A read-only file that can seek and holds in memory only what was read of it.

    `name` is its address without user name, password and query, `size` its length and `received` what came
    so far, in bytes. Where its server serves no ranges, all of it lies in a temporary file.
    """

    def __init__(
        self,
        session: requests.Session,
        url: str,
        *,
        size: int,
        etag: str = "",
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self.name = shown(url)
        self.size = size
        self.received = 0
        self._session, self._url, self._etag = session, url, etag
        self._progress: Progress = progress or _silent
        self._planned = 0
        self._position = 0
        self._chunks: list[tuple[int, bytearray]] = []
        self._copy: IO[bytes] | None = None

    @property
    def whole(self) -> bool:
        """Whether the whole file was downloaded, because its server serves no ranges."""
        return self._copy is not None

    def readable(self) -> bool:
        """It is: always true."""
        return True

    def seekable(self) -> bool:
        """It is: always true."""
        return True

    def tell(self) -> int:
        """Give the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position in bytes, as files do; nothing is read."""
        self._position = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence])
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill `buffer` as far as the file goes; asks the server for what `prefetch` did not bring.

        Raises:
            Failure: the server did not give these bytes of the file that was opened.
        """
        view = memoryview(buffer).cast("B")
        start = self._position
        stop = max(start, min(start + len(view), self.size))
        if self._copy is not None:
            self._copy.seek(start)
            view[: stop - start] = self._copy.read(stop - start)
        else:
            self._bring(_missing(start, stop, self._held()))
            for at, data in self._chunks:
                first, last = max(start, at), min(stop, at + len(data))
                if first < last:
                    view[first - start : last - start] = data[first - at : last - at]
        self._position = stop
        return stop - start

    def prefetch(self, spans: Iterable[Span]) -> None:
        """Read these spans now, in as few requests as make sense.

        Raises:
            Failure: as `readinto`.
        """
        if not self.whole:
            held = self._held()
            self._bring(gap for start, stop in _runs(spans) for gap in _missing(start, min(stop, self.size), held))

    def close(self) -> None:
        """Forget what was read."""
        self._chunks.clear()
        if self._copy is not None:
            self._copy.close()
        super().close()

    def _held(self) -> list[Span]:
        return sorted((at, at + len(data)) for at, data in self._chunks)

    def _bring(self, spans: Iterable[Span]) -> None:
        plan = list(spans)
        self._planned += sum(stop - start for start, stop in plan)
        for start, stop in plan:
            self._chunks.append((start, self._receive(start, stop)))

    def _receive(self, start: int, stop: int, answer: requests.Response | None = None) -> bytearray:
        """Read one span, going on where the connection was cut; `answer` is a response that begins it."""
        data = bytearray()
        why = ""
        for _ in range(ATTEMPTS):
            try:
                with answer or self._ask(start + len(data), stop) as response:
                    for block in _blocks(response):
                        data += block
                        if start + len(data) > stop:
                            raise _unreadable(self._url, f"more bytes came than the {stop - start} asked for")
                        self.received += len(block)
                        self._progress(self.received, self._planned)
            except _CutError as error:
                why = str(error)
            if start + len(data) == stop:
                return data
            answer = None
        raise _unreadable(self._url, f"cut off {ATTEMPTS} times: {why or 'the body was short'}")

    def _ask(self, start: int, stop: int) -> requests.Response:
        response = _get(self._session, self._url, f"bytes={start}-{stop - 1}", self._etag)
        try:
            if response.status_code == requests.codes.ok:  # what If-Range gives for another file, or ranges ended
                raise _unreadable(self._url, "it changed while it was read, or its server stopped serving ranges")
            if response.status_code != requests.codes.partial_content:
                raise _unreadable(self._url, answers(response))
            if _content_range(response) != (start, stop, self.size) or _etag(response) != self._etag:
                raise _unreadable(self._url, "its server sent another range, or the file changed while it was read")
        except Failure:
            response.close()
            raise
        return response

    def _begin(self, tail: requests.Response, start: int) -> None:
        self._planned = self.size - start
        self._chunks.append((start, self._receive(start, self.size, tail)))

    def _download(self, answer: requests.Response | None) -> None:
        """Put the whole body into a temporary file, from its beginning after each cut."""
        try:
            self._copy = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this file
            self._copy_to(self._copy, answer)
        except OSError as error:
            raise Failure(Problem("cannot write", "temporary file", cause(error))) from error

    def _copy_to(self, copy: IO[bytes], answer: requests.Response | None) -> None:
        why = ""
        for _ in range(ATTEMPTS):
            copy.seek(0)
            try:
                with answer or _get(self._session, self._url) as response:
                    if response.status_code != requests.codes.ok:
                        raise _unreadable(self._url, answers(response))
                    length = response.headers.get("Content-Length", "")
                    total = int(length) if length.isdecimal() else 0
                    for block in _blocks(response):
                        copy.write(block)
                        self.received += len(block)
                        self._progress(copy.tell(), max(total, copy.tell()))
                self.size = copy.tell()
                return
            except _CutError as error:
                why = str(error)
            answer = None
        raise _unreadable(self._url, f"cut off {ATTEMPTS} times: {why}")


def open_remote(session: requests.Session, url: str, *, progress: Progress | None = None) -> RemoteFile:
    """Open the file at `url` with its last bytes already read; close it after use. The session stays open.

    A server that ignores ranges or refuses them sends the whole file, once, into a temporary file.

    Raises:
        Failure: the server does not answer, has no such file, cuts every connection, or sends something else.
    """
    answer = _get(session, url, f"bytes=-{TAIL}")
    try:
        if answer.status_code != requests.codes.partial_content:
            file = RemoteFile(session, url, size=0, progress=progress)
            file._download(answer if answer.status_code == requests.codes.ok else None)
            return file
        start, stop, size = _content_range(answer) or (-1, -1, 0)
        if stop != size or start != max(0, size - TAIL):
            raise _unreadable(url, "its server sent another range than the end of the file")
        file = RemoteFile(session, url, size=size, etag=_etag(answer), progress=progress)
        file._begin(answer, start)
        return file
    finally:
        answer.close()


def shown(url: str) -> str:
    """Give `url` as messages may show it: without user name, password, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def answers(response: requests.Response) -> str:
    """Say what the server answered, as a cause."""
    return f"the server answers {response.status_code} {(response.reason or '').lower()}".rstrip()


def cause(error: BaseException) -> str:
    """Say why something failed: the innermost reason that libraries wrapped, in one line, no address."""
    if isinstance(error, OSError) and error.strerror:
        return _lower(error.strerror)
    wrapped = (getattr(error, "reason", None), *error.args, error.__cause__, error.__context__)
    for inner in wrapped:
        if isinstance(inner, BaseException):
            return cause(inner)
    if isinstance(error, (requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError)):
        return f"no answer within {TIMEOUT:g} s"
    if isinstance(error, requests.RequestException):  # its text may have the whole address in it
        return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    return _lower(str(error)) or type(error).__name__


def _lower(text: str) -> str:
    """Give the first line without its capital; the rest may be a path."""
    return text[:1].lower() + text[1:].partition("\n")[0]


class _CutError(Exception):
    """The body ended before its end."""


def _unreadable(url: str, why: str) -> Failure:
    return Failure(Problem("cannot read", shown(url), why))


def _silent(_done: int, _total: int, /) -> None:
    pass


def _get(session: requests.Session, url: str, span: str = "", etag: str = "") -> requests.Response:
    headers = {"Accept-Encoding": "identity"}  # a range of a compressed body would be of no use
    if span:
        headers["Range"] = span
    if etag and not etag.startswith("W/"):  # If-Range takes strong ones only
        headers["If-Range"] = etag
    try:
        return session.get(url, headers=headers, stream=True, timeout=TIMEOUT)
    except (OSError, ValueError) as error:  # ValueError: addresses that urllib3 and requests refuse
        raise _unreadable(url, cause(error)) from error


def _blocks(response: requests.Response) -> Iterator[bytes]:
    try:
        yield from response.iter_content(BLOCK)
    except requests.RequestException as error:
        raise _CutError(cause(error)) from error


def _etag(response: requests.Response) -> str:
    return response.headers.get("ETag", "")


def _content_range(response: requests.Response) -> tuple[int, int, int] | None:
    """Give the first byte, the byte after the last and the length of the whole, None if it does not say."""
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("Content-Range", ""))
    return (int(found[1]), int(found[2]) + 1, int(found[3])) if found else None


def _runs(spans: Iterable[Span]) -> Iterator[Span]:
    """Join spans that lie close together."""
    ordered = sorted(spans)
    if not ordered:
        return
    start, stop = ordered[0]
    for first, last in ordered[1:]:
        if first > stop + GAP:
            yield start, stop
            start, stop = first, last
        stop = max(stop, last)
    yield start, stop


def _missing(start: int, stop: int, held: Iterable[Span]) -> Iterator[Span]:
    """Give the parts of one span that `held`, in order, leaves out."""
    for first, last in held:
        if first >= stop:
            break
        if first > start:
            yield start, first
        start = max(start, last)
    if start < stop:
        yield start, stop
