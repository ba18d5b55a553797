"""A file on a web server, read in ranges as if it lay on disk, or whole where its server serves no ranges."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

import requests

from vpatch.net import limits
from vpatch.net.error_text import shown
from vpatch.net.spans import Span, joined, missing
from vpatch.net.transfer import Progress, Transfer
from vpatch.net.web import content_range, etag_of, get, unreadable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TAIL = 1 << 19  # bytes asked for first: most wheels' whole directory


class RemoteFile(io.RawIOBase):
    """A read-only file that can seek and holds in memory only what was read of it.

    `name` is its address without user name, password and query, `size` its length in bytes. Where its server serves
    no ranges, `copy` has all of it.
    """

    def __init__(self, transfer: Transfer, copy: IO[bytes] | None = None) -> None:
        super().__init__()
        self.name = shown(transfer.url)
        self.size = transfer.size
        self._transfer = transfer
        self._copy = copy
        self._pieces: list[tuple[int, bytearray]] = []
        self._position = 0

    @property
    def received(self) -> int:
        """How many bytes came so far."""
        return self._transfer.received

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
            self._bring(missing(start, stop, self._held()))
            for at, data in self._pieces:
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
            self._bring(gap for start, stop in joined(spans) for gap in missing(start, min(stop, self.size), held))

    def close(self) -> None:
        """Forget what was read."""
        self._pieces.clear()
        if self._copy is not None:
            self._copy.close()
        super().close()

    def _held(self) -> list[Span]:
        return sorted((at, at + len(data)) for at, data in self._pieces)

    def _bring(self, spans: Iterable[Span], answer: requests.Response | None = None) -> None:
        """Read these spans; `answer` is a response that begins the first."""
        plan = list(spans)
        if sum(stop - start for start, stop in plan) + sum(len(data) for _, data in self._pieces) > limits.FILES:
            raise unreadable(self._transfer.url, f"more than {limits.size(limits.FILES)} of it would be read")
        self._transfer.planned += sum(stop - start for start, stop in plan)
        for start, stop in plan:
            self._pieces.append((start, self._transfer.span(start, stop, answer)))
            answer = None


def open_remote(session: requests.Session, url: str, *, progress: Progress | None = None) -> RemoteFile:
    """Open the file at `url` with its last bytes already read; close it after use. The session stays open.

    A server that ignores ranges or refuses them sends the whole file, once, into a temporary file.

    Raises:
        Failure: the server does not answer, has no such file, cuts every connection, or sends something else.
    """
    answer = get(session, url, f"bytes=-{TAIL}")
    try:
        if answer.status_code != requests.codes.partial_content:
            transfer = Transfer(session, url, progress=progress)
            copy = transfer.whole(answer if answer.status_code == requests.codes.ok else None)
            return RemoteFile(transfer, copy)
        start, stop, size = content_range(answer) or (-1, -1, 0)
        if stop != size or start != max(0, size - TAIL):
            raise unreadable(url, "its server sent another range than the end of the file")
        if size > limits.WHEEL:
            raise unreadable(url, f"it has {size:,} bytes, and may have {limits.size(limits.WHEEL)}")
        file = RemoteFile(Transfer(session, url, size=size, etag=etag_of(answer), progress=progress))
        file._bring([(start, size)], answer)
        return file
    finally:
        answer.close()
