"""The network code that `release` and `image` share: an HTTP session, range reading, and error texts."""

from __future__ import annotations


def size(count: int) -> str:
    """Format a number of bytes: `64 MiB` if it is a whole number of some unit, else `1,234 bytes`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count:,} bytes"


def megabytes(count: int) -> str:
    """Format a number of bytes: `1,234.5 MB`."""
    return f"{count / 1e6:,.1f} MB"
