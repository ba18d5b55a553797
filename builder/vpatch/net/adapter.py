"""How servers are reached: an answer has a limit, and one that drips has too."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

from vpatch.net import limits

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class RefusedError(OSError):
    """A server sends more than vpatch takes, or too slowly."""


class Pace:
    """What a server sent so far, and how long it was waited for. Each byte that comes resets a socket's time limit.

    `granted` are seconds besides `limits.GRACE`.
    """

    def __init__(self) -> None:
        self.received = 0
        self.waited = self.granted = 0.0

    def count(self, seconds: float, received: int) -> None:
        """Add what came, and the wait for it.

        Raises:
            RefusedError: the server is too slow on the whole.
        """
        self.waited += seconds
        self.received += received
        if self.waited > limits.GRACE + self.granted + self.received / limits.RATE:
            least = f"{limits.size(limits.RATE)} a second are the least, after {limits.GRACE:g} s"
            raise RefusedError(f"too slow: {self.received:,} bytes in {self.waited:.1f} s, and {least}")


class Adapter(HTTPAdapter):
    """Counts everything that its servers send, down to the headers, against one `Pace`.

    An answer that is not streamed has at most `limits.ANSWER` bytes.
    """

    def __init__(self, **options: Any) -> None:
        self.pace = Pace()
        super().__init__(**options)

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        """Make the pools of connections."""
        super().init_poolmanager(*arguments, **options)
        self._watch(self.poolmanager)

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        """Make the pools of connections by way of a proxy."""
        return self._watch(super().proxy_manager_for(*arguments, **options))

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        """Send a request.

        Raises:
            RefusedError: the server sends its answer too slowly. Later, where the answer is read: it is too large.
        """
        answer = super().send(request, *arguments, **options)
        if not options.get("stream"):
            answer.raw = _Limited(answer.raw)
        return answer

    def _watch(self, manager: Any) -> Any:
        about = {"pace": self.pace}
        plain = type("_PlainConnection", (_Watched, HTTPConnection), about)
        secure = type("_SecureConnection", (_Watched, HTTPSConnection), about)
        manager.pool_classes_by_scheme = {
            "http": type("_PlainPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
            "https": type("_SecurePool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
        }
        return manager


class _Limited:
    """A body that is read as a whole."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def stream(self, *arguments: Any, **options: Any) -> Iterator[bytes]:
        size = 0
        for block in self._raw.stream(*arguments, **options):
            size += len(block)
            if size > limits.ANSWER:
                raise RefusedError(f"too large: an answer may have {limits.size(limits.ANSWER)}")
            yield block

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class _Watched:
    """Makes of a connection one whose socket is watched."""

    pace: Pace
    sock: Any

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        self.sock = _Socket(self.sock, self.pace)


class _Socket:
    """A socket from which `http.client` reads by way of a `_Counted`."""

    def __init__(self, real: Any, pace: Pace) -> None:
        self._real, self._pace = real, pace

    def makefile(self, *_arguments: Any) -> io.BufferedReader:
        return io.BufferedReader(_Counted(self._real.makefile("rb", buffering=0), self._pace))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Counted(io.RawIOBase):
    """Reads what a socket has, once for each call, and counts it."""

    def __init__(self, real: io.RawIOBase, pace: Pace) -> None:
        self._real, self._pace = real, pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        began = time.monotonic()
        count = self._real.readinto(buffer)
        self._pace.count(time.monotonic() - began, count or 0)
        return count

    def close(self) -> None:
        self._real.close()
        super().close()
