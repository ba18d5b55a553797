"""Differences between the log-probabilities of a prompt's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

LAST = 4096
"""The last tokens of a long prompt, which attend to every cached tile."""
LONG = 16384

Saved = Mapping[str, Sequence[float]]


def gaps(ours: Saved, theirs: Saved, chunk: int) -> Iterator[dict[str, Any]]:
    """Return the differences for the parts of a prompt, in nats.

    Args:
        ours: "prompt", a log-probability for each token but the first, and "top", the likeliest token there.
        theirs: the same of the reference.
        chunk: the tokens of one step. Those of the first chunk attend to keys and values as computed; later ones read
            the KV cache.

    Raises:
        ValueError: the two are not of one prompt.
    """
    length = len(ours["prompt"])
    parts = {"first": slice(0, chunk), "later": slice(chunk, None)}
    if length > LONG:
        parts["last"] = slice(length - LAST, None)
    for part, where in parts.items():
        pairs = list(zip(ours["prompt"], theirs["prompt"], strict=True))[where]
        if not pairs:
            continue
        apart = [abs(a - b) for a, b in pairs]
        same = [a == b for a, b in zip(ours["top"][where], theirs["top"][where], strict=True)]
        yield {
            "part": part,
            "tokens": len(pairs),
            "mean": round(fmean(apart), 6),
            "max": max(apart),
            "same_top": round(fmean(same), 4),
        }
