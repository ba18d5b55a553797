"""How addresses, servers' answers and errors are told: one line, no secret."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import requests
import urllib3

TIMEOUT = 20.0  # seconds of silence before a server counts as gone, which `cause` names


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
    # Not its context: that is whatever was being handled when it was raised, which need have nothing to do with it.
    wrapped = (getattr(error, "reason", None), *error.args, error.__cause__)
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
