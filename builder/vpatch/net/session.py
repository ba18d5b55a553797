"""The HTTP session, its limits, and how messages show addresses, sizes, answers and errors: without secrets."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util import Retry, parse_url

from vpatch.net import size

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TIMEOUT = 20.0  # seconds of silence after which a server counts as gone; `cause` names them
BACKOFF = 0.2  # seconds, doubled with each try
RETRIES = 3
BUSY = (429, 500, 502, 503, 504)


@dataclass
class ServerLimits:
    """The most that vpatch accepts. They leave room: vLLM 0.33.0 has 336 MB and 5,802 files, with 50 MB of sources."""

    wheel: int = 8 << 30  # bytes of a wheel
    directory: int = 16 << 20  # bytes of its zip directory
    members: int = 100_000  # files in it
    folders: int = 64  # in each other, in the name of one file
    file: int = 64 << 20  # bytes of one file that is read, unpacked
    files: int = 1 << 30  # bytes of all files that are read, unpacked
    answer: int = 64 << 20  # bytes of an index page, or of another answer that is read as a whole, unpacked
    listed: int = 100_000  # files on an index page
    grace: float = 120.0  # seconds that a server may take in total, however little it sends
    rate: int = 16 << 10  # bytes a second that it must send besides


LIMITS = ServerLimits()


class RefusedError(OSError):
    """A server sends more than vpatch accepts, sends too slowly, or redirects to no web address."""


@dataclass
class Pace:
    """The bytes a server sent, and the seconds of waiting for them: a socket's time limit restarts with each byte."""

    received: int = 0
    waited: float = 0.0
    granted: float = 0.0  # seconds in addition to `LIMITS.grace`

    def count(self, seconds: float, received: int) -> None:
        """Add received bytes and the wait for them; raise RefusedError if the server is too slow on average."""
        self.waited += seconds
        self.received += received
        if self.waited > LIMITS.grace + self.granted + self.received / LIMITS.rate:
            least = f"{size(LIMITS.rate)} a second are the least, after {LIMITS.grace:g} s"
            raise RefusedError(f"too slow: {self.received:,} bytes in {self.waited:.1f} s, and {least}")


class Session(requests.Session):
    """Retries busy servers, counts what they send, and follows redirects over HTTP and HTTPS only."""

    def __init__(self) -> None:
        super().__init__()
        for scheme in ("https://", "http://"):
            self.mount(scheme, Adapter())

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return the address that a response redirects to, if it does; raise RefusedError if that is a file, say."""
        target = super().get_redirect_target(resp)
        if target is None:
            return None
        with suppress(ValueError):
            url = urljoin(resp.url, target)
            if url.startswith(("http://", "https://")) and parse_url(url).host is not None:
                return target
        raise RefusedError(f"it redirects to {target.partition('?')[0][:200]!r}, which is no address of the web")


class Adapter(HTTPAdapter):
    """Counts everything that its servers send, headers included, against one `Pace`, and retries busy ones.

    An answer that is not streamed has at most `LIMITS.answer` bytes. `options` are those of urllib3's `Retry`.
    """

    def __init__(self, **options: Any) -> None:
        self.pace = Pace()
        # Not `Retry-After`, which may be an hour: a command line gives up before that.
        rule: dict[str, Any] = {"backoff_factor": BACKOFF, "status_forcelist": BUSY, "raise_on_status": False}
        super().__init__(max_retries=Retry(RETRIES, **rule, **options, respect_retry_after_header=False))

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        """Make the pools of connections."""
        super().init_poolmanager(*arguments, **options)
        self._watch(self.poolmanager)

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        """Make the pools of connections through a proxy."""
        return self._watch(super().proxy_manager_for(*arguments, **options))

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        """Send a request; raise RefusedError if the server answers too slowly, or later with too large an answer."""
        answer = super().send(request, *arguments, **options)
        if not options.get("stream"):
            answer.raw = _Limited(answer.raw)
        return answer

    def _watch(self, manager: Any) -> Any:
        counted = {"response_class": partial(_counted_response, self.pace)}
        manager.pool_classes_by_scheme = {
            scheme: type(pool.__name__, (pool,), {"ConnectionCls": type(kind.__name__, (kind,), counted)})
            for scheme, pool in (("http", HTTPConnectionPool), ("https", HTTPSConnectionPool))
            for kind in [pool.ConnectionCls]
        }
        return manager


class _Limited:
    """A body that is read as a whole."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def stream(self, *arguments: Any, **options: Any) -> Iterator[bytes]:
        received = 0
        for block in self._raw.stream(*arguments, **options):
            received += len(block)
            if received > LIMITS.answer:
                raise RefusedError(f"too large: an answer may have {size(LIMITS.answer)}")
            yield block

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def _counted_response(pace: Pace, *arguments: Any, **options: Any) -> HTTPResponse:
    response = HTTPResponse(*arguments, **options)
    response.fp = io.BufferedReader(_Counted(response.fp.detach(), pace))
    return response


class _Counted(io.RawIOBase):
    """Reads once from a socket for each call; counts the bytes, headers included, and the wait."""

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


def shown(url: str) -> str:
    """Return `url` without user name, password, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def answers(response: requests.Response) -> str:
    """Describe the server's answer, as the cause of a problem."""
    return f"the server answers {response.status_code} {(response.reason or '').lower()}".rstrip()


def cause(error: BaseException) -> str:
    """Describe the innermost reason of an error that libraries wrapped, in one line and without any address."""
    if isinstance(error, OSError) and error.strerror:
        return _first_line(error.strerror)
    # Not its `__context__`: that is any error that was being handled at the time, related or not.
    for inner in (getattr(error, "reason", None), *error.args, error.__cause__):
        if isinstance(inner, BaseException):
            return cause(inner)
    if isinstance(error, (requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError)):
        return f"no answer within {TIMEOUT:g} s"
    if isinstance(error, requests.RequestException):  # its text may contain the whole address
        return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    return _first_line(str(error)) or type(error).__name__


def host_of(error: BaseException, url: str) -> str:
    """Return the host that an error is about: that of the request that failed, else that of `url`."""
    request = getattr(error, "request", None)
    return urlsplit(getattr(request, "url", None) or url).netloc.rpartition("@")[2]


def _first_line(text: str) -> str:
    """Return the first line, its first letter in lower case; the rest may be a path."""
    return text[:1].lower() + text[1:].partition("\n")[0]
