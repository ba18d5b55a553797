"""One request for a file on a web server, and what its answer says of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

import requests

from vpatch.errors import Failure, Problem
from vpatch.net import error_text

BLOCK = 1 << 16

_COUNT = r"\d{1,18}"  # bytes: more digits than Python reads may come


class CutError(Exception):
    """The body ended before its end."""


def unreadable(url: str, why: str) -> Failure:
    """Give the failure that says why the file at `url` cannot be read."""
    return Failure(Problem("cannot read", error_text.shown(url), why))


def get(session: requests.Session, url: str, span: str = "", etag: str = "") -> requests.Response:
    """Ask for the file at `url`, or for a span of it; the answer is to be closed.

    Raises:
        Failure: the server does not answer.
    """
    headers = {"Accept-Encoding": "identity"}  # a range of a compressed body would be of no use
    if span:
        headers["Range"] = span
    if etag and not etag.startswith("W/"):  # If-Range takes strong ones only
        headers["If-Range"] = etag
    try:
        return session.get(url, headers=headers, stream=True, timeout=error_text.TIMEOUT)
    except (OSError, ValueError) as error:  # ValueError: addresses that urllib3 and requests refuse
        raise unreadable(url, error_text.cause(error)) from error


def blocks(response: requests.Response) -> Iterator[bytes]:
    """Give the body as it comes.

    Raises:
        CutError: it ended before its end.
    """
    try:
        yield from response.iter_content(BLOCK)
    except requests.RequestException as error:
        raise CutError(error_text.cause(error)) from error


def etag_of(response: requests.Response) -> str:
    """Give what names this version of the file, empty if its server does not say."""
    return response.headers.get("ETag", "")


def content_range(response: requests.Response) -> tuple[int, int, int] | None:
    """Give the first byte, the byte after the last and the length of the whole, None if it does not say."""
    found = re.fullmatch(rf"bytes ({_COUNT})-({_COUNT})/({_COUNT})", response.headers.get("Content-Range", ""))
    return (int(found[1]), int(found[2]) + 1, int(found[3])) if found else None


def content_length(response: requests.Response) -> int:
    """The bytes that the body is said to have, 0 if it is not said."""
    found = re.fullmatch(_COUNT, response.headers.get("Content-Length", ""))
    return int(found[0]) if found else 0
