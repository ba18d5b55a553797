"""Checks of claims about the chunks of prompts to hybrid models."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from tests.validation.gpu.evidence import Evidence, Figure

SPARE = 4
"""Steps beyond two for each block of the prompt."""


def goes_on(here: Evidence, tree: str, *, wrong: bool) -> Iterator[Figure]:
    """A prompt beside a decode has its first token within two steps a block; `wrong`: it gets no token at all."""
    (found,) = here.events(tree, "progress", "progress")
    first, computed, length = found["first_token"], found["computed"], found["progress"]
    most = 2 * ceil(length / found["block"]) + SPARE
    text = f"first token after {first} steps" if first else f"no first token, {computed:,} of {length:,} tokens"
    yield Figure(first is None and computed == 0 if wrong else first is not None and first <= most, text)


def found_again(here: Evidence, tree: str, *, wrong: bool) -> Iterator[Figure]:
    """The second turns of conversations find cached states; `wrong`: they find none."""
    cached = [event["cached"][0] for event in here.events(tree, "units", "cached")][1::2]
    yield Figure(not any(cached) if wrong else all(cached), f"cached tokens of {len(cached)} second turns: {cached}")
