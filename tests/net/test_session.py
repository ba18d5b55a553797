"""Causes are one line, without secrets."""

from __future__ import annotations

from vpatch.net.session import cause, shown


def test_shows_no_secret() -> None:
    assert shown("https://me:secret@host:8/a/b?token=secret#secret") == "https://host:8/a/b"


def test_says_the_innermost_cause() -> None:
    error = OSError("outer")
    error.__cause__ = ValueError("inner\nmore")

    assert cause(error) == "inner"
    assert cause(OSError()) == "OSError"
    assert cause(OSError(28, "No space left on device")) == "no space left on device"
