"""Print the accepted counts that requests read on vLLM's own code, in named and in random sequences of steps."""

from __future__ import annotations

import random
import sys
from typing import Any
from unittest.mock import MagicMock

from vpatch_overlays.probes import hybrid_mtp_counts
from vpatch_overlays.probes.accepted_counts import DRAFTS, EARLY, LATE, PROMPT, REST, Steps

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
    "all end": ("ABC", {"D": PROMPT, "H": PROMPT}, ""),
}
"""By what moves: who ends, who comes and who decodes on. Before, A, B, C and the others that are named decode."""

LANDINGS = {"early": EARLY, "between": 2, "late": LATE}

Read = dict[str, int]


def named(mode: str, case: str, lands: int, *, asynchronous: bool) -> dict[str, Any]:
    """Let some requests decode, then change the batch; return what each request reads, and what it should."""
    ended, new, left = MOVES[case]
    counts = DECODING | dict.fromkeys(sorted({*ended, *left} - {*DECODING}), 3)
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

    def __init__(self, mode: str, seed: int, *, asynchronous: bool) -> None:
        """Draw from `seed`."""
        self.random = random.Random(f"{mode} {asynchronous} {seed}")  # noqa: S311 - it is to be repeatable
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
        lands = draw.choice((EARLY, 1, 2, 3, 4, LATE))
        read = self.steps.begin(scheduled, ended=ended, drafts=drafts, lands=lands)
        self.begun = {name for name, tokens in scheduled.items() if tokens == PROMPT - REST}
        counts = {name: draw.randint(1, DECODE) if name in drafts else 1 for name in scheduled}
        self.steps.end(counts, discarded=self.begun)
        self.count, self.idle = counts | dict.fromkeys(idle, 1), idle
        return read, right


def drawn(mode: str, sequences: int, length: int, *, asynchronous: bool) -> dict[str, Any]:
    """Count the requests that read a wrong count, the steps that wait, and those that move rows before."""
    wrong, total, moved, waits = 0, 0, 0, 0
    for seed in range(sequences):
        draw = Draw(mode, seed, asynchronous=asynchronous)
        for _ in range(length):
            read, right = draw.step()
            wrong += sum(read[name] != right[name] for name in right)
            total += len(right)
            log = draw.steps.copy.log
            waits += "wait" in log
            moved += log[:1] != ["wait"] and "wait" in log
    return {"wrong": wrong, "total": total, "waits": waits, "moved before a wait": moved}


def main(_home: str, sequences: str, length: str) -> dict[str, Any]:
    sys.modules.setdefault("diskcache", MagicMock())  # 0.18 and 0.19 import it, and nothing here uses it
    found: dict[str, Any] = {"named": {}, "a prompt trades rows": {}, "drawn": {}}
    for name, asynchronous in MODES.items():
        mode = name.partition(",")[0]
        for landing, lands in LANDINGS.items():
            found["named"][f"{name}, {landing}"] = {
                case: named(mode, case, lands, asynchronous=asynchronous) for case in MOVES
            }
            found["a prompt trades rows"][f"{mode}, {landing}"] = hybrid_mtp_counts.read(mode, lands)
        found["drawn"][name] = drawn(mode, int(sequences), int(length), asynchronous=asynchronous)
    return found
