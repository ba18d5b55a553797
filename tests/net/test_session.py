"""Causes are one line, without secrets; a server may be slow only so far."""

from __future__ import annotations

import pytest
from vpatch.net.session import LIMITS, Pace, RefusedError, cause, shown


def test_the_innermost_cause_is_shown_and_no_secret() -> None:
    assert shown("https://me:secret@host:8/a/b?token=secret#secret") == "https://host:8/a/b"
    error = OSError("outer")
    error.__cause__ = ValueError("inner\nmore")

    assert cause(error) == "inner"
    assert cause(OSError()) == "OSError"
    assert cause(OSError(28, "No space left on device")) == "no space left on device"


def test_a_server_that_is_slow_where_it_may_be() -> None:
    pace = Pace()
    pace.count(LIMITS.grace + 99, 100 * LIMITS.rate)
    pace.granted = 60.0
    pace.count(60.0, 0)

    with pytest.raises(RefusedError, match=r"^too slow: 1,638,400 bytes in 282.0 s, and 16 KiB a second are the least"):
        pace.count(3.0, 0)
