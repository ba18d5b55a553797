"""Unified diffs of bytes, for `patch` and people."""

from __future__ import annotations


def unified(file: str, old: bytes | None, new: bytes) -> list[str]:
    """Return the diff of a file as lines without newline; bytes that are not UTF-8 are surrogate escapes.

    Args:
        file: its path.
        old: its content before; None if it is added.
        new: its content after.
    """
    import difflib

    source = f"a/{file}" if old is not None else "/dev/null"
    found: list[str] = []
    for line in difflib.unified_diff(_lines(old or b""), _lines(new), source, f"b/{file}"):
        found += [line[:-1]] if line.endswith("\n") else [line, "\\ No newline at end of file"]
    return found


def _lines(data: bytes) -> list[str]:
    """Split where `patch` does, and in a way that gives the same bytes back."""
    *lines, last = data.decode("utf-8", "surrogateescape").split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])
