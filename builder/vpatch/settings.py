"""Settings from the environment: the time that reproducible builds give to what they make, and the cache's folder.

Sources: https://reproducible-builds.org/specs/source-date-epoch/ and the XDG Base Directory Specification
"""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

from vpatch.errors import Failure, Problem

_LAST = 253_402_300_799  # the end of the year 9999: later times have no form in RFC 3339


def source_date_epoch() -> int | None:
    """Return SOURCE_DATE_EPOCH in seconds; None if it is not set, or empty.

    Raises:
        Failure: it is no number of seconds from 1970 to the end of 9999.
    """
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return None
    if text.isascii() and text.isdigit() and len(text) <= len(str(_LAST)) and int(text) <= _LAST:
        return int(text)
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    raise Failure(Problem("bad SOURCE_DATE_EPOCH", shown, "not a number of seconds from 1970 to 9999"))


def rfc3339(seconds: int | None = None) -> str:
    """Return a time (default: now) as RFC 3339 has it, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def user_name() -> str:
    """Return the name of the user who runs vpatch; without one, the number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def state_folder() -> Path:
    """Return the folder for what outlasts a run and is no cache, which may not exist.

    Raises:
        Failure: the user has no home folder.
    """
    return _folder("XDG_STATE_HOME", ".local/state", "set XDG_STATE_HOME")


def cache_folder(otherwise: str = "or use --no-cache") -> Path:
    """Return the folder of the cache, which may not exist: `vpatch` in the user's folder for caches.

    Raises:
        Failure: the user has no home folder; it says what to do `otherwise`.
    """
    return _folder("XDG_CACHE_HOME", ".cache", f"set XDG_CACHE_HOME, {otherwise}")


def _folder(variable: str, otherwise: str, hint: str) -> Path:
    base = os.environ.get(variable, "")
    if Path(base).is_absolute():  # the specification ignores relative ones
        return Path(base, "vpatch")
    try:
        return Path.home() / otherwise / "vpatch"
    except RuntimeError as error:
        raise Failure(Problem("no folder", f"~/{otherwise}", "no home folder", hint=hint)) from error
