"""The most that vpatch takes from a server of wheels: what goes beyond is refused, with the limit in the message.

Generous for what there is: the wheel of vLLM 0.33.0 has 336 MB and 5,802 files, of which 50 MB are sources.
"""

from __future__ import annotations

WHEEL = 8 << 30  # bytes of a wheel
DIRECTORY = 16 << 20  # bytes of the list of its files
MEMBERS = 100_000  # files in it
FILE = 64 << 20  # bytes of one file that is read, unpacked
FILES = 1 << 30  # bytes of all files that are read, unpacked
ANSWER = 64 << 20  # bytes of an index page, or of another answer that is read as a whole, unpacked

GRACE = 120.0  # seconds that a server may take, all in all, however little it sends
RATE = 16 << 10  # bytes a second that it must send besides


def size(count: int) -> str:
    """A number of bytes as messages have it: `64 MiB`; a limit is a whole number of some unit."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count:,} bytes"
