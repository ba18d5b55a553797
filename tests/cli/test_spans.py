"""The vLLMs that have the same verdict are one line, and a run of releases is written by its ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from vpatch.cli.spans import rows
from vpatch.core.verdict import PartVerdict, State, Verdict
from vpatch.errors import Problem

ALL = ("0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.32.0", "0.33.0")


def verdict(state: State) -> Verdict:
    problems = (Problem("drifted", "vllm/x.py", "it is gone"),) if state is State.DRIFTED else ()
    return Verdict("fix", (PartVerdict("patch", state, "", (), problems=problems),))


CASES = {
    "runs": ({State.PENDING: ALL[3::-1], State.DRIFTED: ALL[4:]}, ["0.24.0 to 0.26.0", "0.32.0, 0.33.0"]),
    "a gap": (
        {State.PENDING: (*ALL[:3], *ALL[4:]), State.MERGED: ALL[3:4]},
        ["0.24.0 to 0.25.1, 0.32.0, 0.33.0", "0.26.0"],
    ),
    "a folder with a release of the run": ({State.PENDING: ("0.24.0 in {}/venv", *ALL)}, ["0.24.0 to 0.33.0"]),
    "a folder alone": ({State.PENDING: ("0.24.0 in {}/venv",)}, ["0.24.0 in venv"]),
    "a folder that differs": (
        {State.PENDING: ALL, State.APPLIED: ("0.24.0 in /else",)},
        ["0.24.0 in /else", "0.24.0 to 0.33.0"],
    ),
}


@pytest.mark.parametrize(("given", "lines"), CASES.values(), ids=CASES)
def test_the_rows(given: dict[State, tuple[str, ...]], lines: list[str]) -> None:
    states = {name.format(Path.cwd()): verdict(state) for state, names in given.items() for name in names}

    found = [*rows(states)]

    assert [name.strip() for name, _, _ in found] == lines
    assert {(state, why) for _, state, why in found if why} <= {(State.DRIFTED, "vllm/x.py: it is gone")}
