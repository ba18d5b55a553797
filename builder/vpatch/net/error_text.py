"""Addresses, sizes, server answers and errors as messages show them: in one line, without secrets."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import requests
import urllib3

TIMEOUT = 20.0  # seconds of silence after which a server counts as gone; `cause` names them


def shown(url: str) -> str:
    """Return `url` without user name, password, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def size(count: int) -> str:
    """Format a number of bytes: `64 MiB` if it is a whole number of some unit, else `1,234 bytes`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count:,} bytes"


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


def _first_line(text: str) -> str:
    """Return the first line, its first letter in lower case; the rest may be a path."""
    return text[:1].lower() + text[1:].partition("\n")[0]
