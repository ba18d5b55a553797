"""Spans of bytes: joined where they lie close together, less what is there already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

GAP = 1 << 18  # bytes between two spans that cost less to read than another request

Span = tuple[int, int]  # first byte, byte after the last


def joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Join spans that lie close together."""
    ordered = sorted(spans)
    if not ordered:
        return
    start, stop = ordered[0]
    for first, last in ordered[1:]:
        if first > stop + GAP:
            yield start, stop
            start, stop = first, last
        stop = max(stop, last)
    yield start, stop


def missing(start: int, stop: int, held: Iterable[Span]) -> Iterator[Span]:
    """Give the parts of one span that `held`, in order, leaves out."""
    for first, last in held:
        if first >= stop:
            break
        if first > start:
            yield start, first
        start = max(start, last)
    if start < stop:
        yield start, stop
