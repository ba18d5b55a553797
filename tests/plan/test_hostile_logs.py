"""`vpatch plan --log` of logs that are broken, or made to cost time: an answer or one line, soon, and no traceback."""

from __future__ import annotations

import json
import random
import re
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from vpatch.errors import Failure
from vpatch.plan.startup_log import start_of

from tests.paths import ROOT
from tests.plan.test_startup_log import LOG
from tests.tiers import deep

if TYPE_CHECKING:
    from tests.conftest import Program

LENGTH = 32_000
RUNS = 8  # of a seed


@pytest.mark.parametrize(
    "line", ["Free memory on device " * 32_000, "version 1.1." + "1" * LENGTH + "x y", "9" * LENGTH]
)
def test_a_line_that_took_half_a_minute(line: str) -> None:
    began = time.process_time()

    assert start_of([*LOG.splitlines(), line], "the log").vllm.release == (0, 20, 2)
    assert time.process_time() - began < 1


VALUES = (
    *("'eight'", "True", "None", "-1", "0", "1e999", "-1e999", "9" * 400, "9" * 5000, "0.5", "[]", "{}", "{[]: 1}"),
    *("b'x'", "...", "1j", "{1, 2}", "'" + "x" * 9000 + "'", "(" * 300, "[" * 9000, "- " * 9000 + "1", "'\\d'"),
    *("'a\\0b'", "{1: 2}"),
)


def test_a_value_of_another_type_is_named(vpatch: Program, tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    log.write_text(LOG.replace("'max_model_len': 8192", "'max_num_seqs': 'eight'"))
    ran = vpatch("plan", "--log", log, "--model", "Qwen3.6-35B-A3B-NVFP4", "--gpu", "5090")

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("cannot use this log: ")
    assert ran.err.endswith("Qwen3.6-35B-A3B-NVFP4: no vLLM starts with --max-num-seqs 'eight'\n")


def test_an_argument_that_json_cannot_have_is_refused() -> None:
    with pytest.raises(Failure, match="no option of vLLM has such a value: seed"):
        start_of(LOG.replace("'max_model_len': 8192", "'seed': 1e999").splitlines(), "the log")


@cache
def logs() -> tuple[tuple[str, ...], ...]:
    """Return the published starts, each as a log with the line of its arguments."""
    found = []
    for path in sorted((ROOT / "docs/starts").glob("held-out/*.json")):
        record: dict[str, Any] = json.loads(path.read_text())
        arguments = f"INFO non-default args: {record['arguments'] | {'model': record['model']}}"
        found.append((f"vLLM API server version {record['vllm']}", arguments, *record["log"]))
    return tuple(found)


NUMBERS = ("-1", "0", "1e400", "9" * 400, "0.0000001", "99999999999", "1,000,000,000,000", "nan")
SIGNS = ("\0", "\x1b[2J", "\udcff", "{", "}", "'", "(", "\\")


def mutated(draw: random.Random, lines: list[str]) -> list[str]:
    """Return the lines with one change: a number, a value, a piece, a line, or its order."""
    at = draw.randrange(len(lines))
    line, start = lines[at], draw.randrange(len(lines[at]) + 1)
    number, value = draw.choice(NUMBERS), draw.choice(VALUES)
    change = draw.randrange(7)
    if change == 0:
        line = re.sub(r"\d[\d.,]*", lambda found: number if draw.random() < 0.3 else found[0], line)
    elif change == 1:
        line = re.sub(r"(?<=': )[^,}]+", lambda found: value if draw.random() < 0.3 else found[0], line)
    elif change == 2:
        line = line[:start] + line[start : start + 30] * draw.choice((2, 40, 4000)) + line[start + 30 :]
    elif change == 3:
        line = line[:start] + draw.choice(SIGNS) + line[start:]
    elif change == 4:
        line = draw.choice(draw.choice(logs()))
    elif change == 5:
        line = line[:start]
    else:
        lines = draw.sample(lines, len(lines))
    return [*lines[:at], line, *lines[at + 1 :]]


@pytest.mark.parametrize("seed", [*range(4), *(deep(seed) for seed in range(4, 150))])
def test_logs_at_random(vpatch: Program, tmp_path: Path, seed: int) -> None:
    draw, log = random.Random(seed), tmp_path / "start.log"  # noqa: S311 - for a test
    for _ in range(RUNS):
        lines = list(draw.choice(logs()))
        for _ in range(draw.randrange(1, 4)):
            lines = mutated(draw, lines)
        log.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
        began = time.process_time()
        named = ("--model", "Qwen3.6-35B-A3B-NVFP4") if draw.random() < 0.8 else ()
        ran = vpatch("plan", "--log", log, *named, "--gpu", draw.choice(("5090", "H100")))

        assert ran.code in (0, 1, 2), f"{lines}\n{ran.err}"
        assert ran.out or 1 <= ran.err.count("\n") <= 4, ran.err
        assert time.process_time() - began < 3
