"""SOURCE_DATE_EPOCH: the time that reproducible builds give to what they make.

Source: https://reproducible-builds.org/specs/source-date-epoch/
"""

from __future__ import annotations

import os
import time

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
