"""The accepted counts that requests read on vLLM's own code, in random sequences of steps."""

from __future__ import annotations

import random
import sys
from typing import Any
from unittest.mock import MagicMock

from vpatch_overlays.probes.accepted_counts import DRAFTS, EARLY, LATE, PROMPT, REST, Steps

MODES = {"align": True, "none": True, "align, synchronous": False, "none, synchronous": False}
DECODE = 1 + DRAFTS

Read = dict[str, int]


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
    return {
        name: drawn(name.partition(",")[0], int(sequences), int(length), asynchronous=asynchronous)
        for name, asynchronous in MODES.items()
    }
