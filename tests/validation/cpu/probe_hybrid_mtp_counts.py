"""Print the accepted counts that requests read on vLLM's own code, in named and in random sequences of steps."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

from vpatch_overlays.probes.accepted_counts import DRAFTS, EARLY, LATE, PROMPT, REST, Steps
from vpatch_overlays.probes.bare import settle

from tests.validation.cpu.probing import report

MODES = {"align": True, "none": True, "align, synchronous": False, "none, synchronous": False}
DECODE = 1 + DRAFTS
DECODING = {"A": 1, "B": 2, "C": 4}
MOVES: dict[str, tuple[str, dict[str, int], str]] = {
    "none": ("", {}, "ABC"),
    "condense": ("A", {}, "BC"),
    "add": ("C", {"D": PROMPT}, "AB"),
    "add and swap": ("A", {"D": PROMPT}, "BC"),
    "condense and swap": ("AB", {"D": PROMPT}, "C"),
    "add, condense and swap": ("ABE", {"D": PROMPT}, "CG"),
    "the same name again": ("A", {"A": PROMPT}, "BC"),
}
"""By what moves: who ends, who comes and who decodes on. Rows before: A, B, C; in the last but one E and G as well."""

Read = dict[str, int]


def named(mode: str, asynchronous: bool, lands: int, case: str) -> dict[str, Any]:
    """Let A, B, C (E and G) decode, then change the batch; return what each request reads, and what it should."""
    ended, new, left = MOVES[case]
    counts = DECODING | {name: 3 for name in {*ended, *left} - {*DECODING}}
    steps = Steps(mode, asynchronous=asynchronous)
    steps.begin(dict.fromkeys(counts, PROMPT))
    steps.end(dict.fromkeys(counts, 1))
    steps.begin(dict.fromkeys(counts, DECODE), drafts=counts)
    steps.end(counts)
    read = steps.begin(dict.fromkeys(left, DECODE) | new, ended=ended, drafts=left, lands=lands)
    right = {name: counts[name] for name in left} | dict.fromkeys(new, 1)
    return {"read": read, "right": right, "log": list(steps.copy.log)}


class Draw:
    """A random sequence of steps of one runner."""

    def __init__(self, mode: str, asynchronous: bool, landing: Callable[[random.Random], int], seed: int) -> None:
        """Draw from `seed`; `landing` draws the moves of rows before which a copy lands."""
        self.random, self.landing = random.Random(f"{mode} {asynchronous} {seed}"), landing  # noqa: S311
        self.steps = Steps(mode, asynchronous=asynchronous)
        self.count: Read = {}  # of each running request, as of the last step
        self.begun: set[str] = set()  # requests with a part of their prompt
        self.idle: set[str] = set()  # requests that were left out of the last step
        self.names = 0

    def step(self) -> tuple[Read, Read]:
        """Make a step; return what was read, and what is right."""
        draw = self.random
        ended = {name for name in self.count if draw.random() < 0.15}
        running = self.count.keys() - ended
        idle = {name for name in running - self.begun - self.idle if draw.random() < 0.05}
        scheduled: dict[str, int] = {}
        drafts = set()
        for name in sorted(running - idle):
            scheduled[name] = REST if name in self.begun else draw.choice((1, DECODE, DECODE, DECODE))
            drafts |= {name} if scheduled[name] == DECODE else set()
        for _ in range(draw.choice((0, 0, 1, 2)) if len(running) < 10 else 0):
            scheduled[f"r{self.names}"] = draw.choice((PROMPT, PROMPT - REST))
            self.names += 1
        # The counts of those that were not in the batch are 1.
        right = {name: 1 if name in self.idle else self.count.get(name, 1) for name in scheduled}
        if not scheduled:
            return {}, {}
        read = self.steps.begin(scheduled, ended=ended, drafts=drafts, lands=self.landing(draw))
        self.begun = {name for name, tokens in scheduled.items() if tokens == PROMPT - REST}
        counts = {name: draw.randint(1, DECODE) if name in drafts else 1 for name in scheduled}
        self.steps.end(counts, discarded=self.begun)
        self.count, self.idle = counts | dict.fromkeys(idle, 1), idle
        return read, right


LANDINGS: dict[str, Callable[[random.Random], int]] = {
    "early": lambda _: EARLY,
    "between": lambda draw: draw.randint(1, 4),
    "late": lambda _: LATE,
    "any": lambda draw: draw.choice((EARLY, 1, 2, 3, 4, LATE)),
}


def drawn(mode: str, asynchronous: bool, landing: str, sequences: int, length: int) -> dict[str, Any]:
    """Count the requests that read a wrong count, and the moves that come before the wait."""
    wrong, total, moved, waits = 0, 0, 0, 0
    for seed in range(sequences):
        draw = Draw(mode, asynchronous, LANDINGS[landing], seed)
        for _ in range(length):
            read, right = draw.step()
            wrong += sum(read[name] != right[name] for name in right)
            total += len(right)
            log = draw.steps.copy.log
            waits += "wait" in log
            moved += log[:1] != ["wait"] and "wait" in log
    return {"wrong": wrong, "total": total, "waits": waits, "moved before a wait": moved}


def main(_home: str, sequences: str, length: str) -> dict[str, Any]:
    """Run the named cases, and as many sequences of steps of this length for each mode and landing."""
    return {
        "named": {
            mode: {
                landing: {case: named(mode.split(",")[0], asynchronous, lands, case) for case in MOVES}
                for landing, lands in {"early": EARLY, "late": LATE}.items()
            }
            for mode, asynchronous in MODES.items()
        },
        "drawn": {
            mode: {
                landing: drawn(mode.split(",")[0], asynchronous, landing, int(sequences), int(length))
                for landing in LANDINGS
            }
            for mode, asynchronous in MODES.items()
        },
    }


def stand_in() -> None:
    """Import vLLM; 0.18 and 0.19 import a cache of grammars, which nothing here uses."""
    sys.modules.setdefault("diskcache", MagicMock())
    settle()


if __name__ == "__main__":
    report(main, on=stand_in)
