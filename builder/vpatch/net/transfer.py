"""The bytes of a file on a web server, asked for again where the connection was cut."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from typing import IO, Protocol

import requests

from vpatch.errors import Failure, Problem
from vpatch.net import limits
from vpatch.net.error_text import answers, cause
from vpatch.net.web import CutError, blocks, content_length, content_range, etag_of, get, unreadable

ATTEMPTS = 3  # times that a body may be cut before vpatch gives up


class Progress(Protocol):
    """Hears how far a download is."""

    def __call__(self, done: int, total: int, /) -> None:
        """Take the bytes received and the bytes expected, which grow as more is asked for."""
        ...


class Transfer:
    """What comes of one file: `received` bytes so far, of the `planned` ones.

    `size` is the file's length, known from the server's first answer, and `etag` the version of the file that this
    answer gave: every later answer must be of the same.
    """

    def __init__(
        self, session: requests.Session, url: str, *, size: int = 0, etag: str = "", progress: Progress | None = None
    ) -> None:
        self.url = url
        self.size = size
        self.received = 0
        self.planned = 0
        self._session, self._etag, self._progress = session, etag, progress or _silent

    def span(self, start: int, stop: int, answer: requests.Response | None = None) -> bytearray:
        """Read one span, going on where the connection was cut; `answer` is a response that begins it.

        Raises:
            Failure: the server did not give these bytes of this file.
        """
        data = bytearray()
        why = ""
        for _ in range(ATTEMPTS):
            try:
                with answer or self._ask(start + len(data), stop) as response:
                    for block in blocks(response):
                        data += block
                        if start + len(data) > stop:
                            raise unreadable(self.url, f"more bytes came than the {stop - start} asked for")
                        self.received += len(block)
                        self._progress(self.received, self.planned)
            except CutError as error:
                why = str(error)
            if start + len(data) == stop:
                return data
            answer = None
        raise unreadable(self.url, f"cut off {ATTEMPTS} times: {why or 'the body was short'}")

    def whole(self, answer: requests.Response | None) -> IO[bytes]:
        """Put all of the file into a temporary one, from its beginning after each cut; gives it, and sets `size`.

        `answer` is a response that has all of it.

        Raises:
            Failure: the server did not give the file, or the disk is full.
        """
        try:
            with ExitStack() as unless_done:
                copy = unless_done.enter_context(tempfile.TemporaryFile())
                self._fill(copy, answer)
                unless_done.pop_all()
                return copy
        except OSError as error:
            raise Failure(Problem("cannot write", "temporary file", cause(error))) from error

    def _ask(self, start: int, stop: int) -> requests.Response:
        response = get(self._session, self.url, f"bytes={start}-{stop - 1}", self._etag)
        try:
            if response.status_code == requests.codes.ok:  # what If-Range gives for another file, or ranges ended
                raise unreadable(self.url, "it changed while it was read, or its server stopped serving ranges")
            if response.status_code != requests.codes.partial_content:
                raise unreadable(self.url, answers(response))
            if content_range(response) != (start, stop, self.size) or etag_of(response) != self._etag:
                raise unreadable(self.url, "its server sent another range, or the file changed while it was read")
        except Failure:
            response.close()
            raise
        return response

    def _fill(self, copy: IO[bytes], answer: requests.Response | None) -> None:
        why = ""
        for _ in range(ATTEMPTS):
            copy.seek(0)
            try:
                with answer or get(self._session, self.url) as response:
                    if response.status_code != requests.codes.ok:
                        raise unreadable(self.url, answers(response))
                    total = content_length(response)
                    for block in blocks(response):
                        copy.write(block)
                        self.received += len(block)
                        self._progress(copy.tell(), max(total, copy.tell()))
                        if copy.tell() > limits.WHEEL:
                            raise unreadable(self.url, f"it has more than {limits.size(limits.WHEEL)}")
                self.size = copy.tell()
                return
            except CutError as error:
                why = str(error)
            answer = None
        raise unreadable(self.url, f"cut off {ATTEMPTS} times: {why}")


def _silent(_done: int, _total: int, /) -> None:
    pass
