"""Unified diffs, as `patch` and `git apply` read them."""

from __future__ import annotations


def unified(file: str, old: bytes | None, new: bytes | None) -> list[str]:
    """Return the diff of a file as lines without newline; None is a file that does not exist.

    Bytes that are not UTF-8 are surrogate escapes.
    """
    import difflib

    source = f"a/{file}" if old is not None else "/dev/null"
    target = f"b/{file}" if new is not None else "/dev/null"
    found: list[str] = []
    for line in difflib.unified_diff(_lines(old or b""), _lines(new or b""), source, target):
        found += [line[:-1]] if line.endswith("\n") else [line, "\\ No newline at end of file"]
    return found


def _lines(data: bytes) -> list[str]:
    """Split where `patch` does, and in a way that gives the same bytes back."""
    *lines, last = data.decode("utf-8", "surrogateescape").split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])
