"""Speed of several engines on one device, measured in turn, so that a drift of the machine meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.validation.gpu.probe import prompt, say

STEPS, PATIENCE_S = 64, 120.0


def turns(llm: Any, lengths: Sequence[int], spec: Mapping[str, Any]) -> None:
    """Measure prefill and decoding in each of our turns, the first of which is not printed.

    The arguments are the batch, its context in tokens, and the number of turns. Spec's "turns" has the path prefixes of
    all engines that take turns.
    """
    batch, context, rounds = lengths
    prefill, decode = [], []
    for number in ours(Path(spec["save"]), [Path(one) for one in spec["turns"]], rounds + 1):
        first, then = _measure(llm, batch, context, number)
        prefill.append(first)
        decode.append(then)
    say(turns=rounds, batch=batch, context=context, prefill_per_s=prefill[1:], decode_per_s=decode[1:])


def _measure(llm: Any, batch: int, context: int, seed: int) -> tuple[float, float]:
    """Return tokens per second until each request has its first token, and in decode steps after that."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    params = SamplingParams(max_tokens=2 * STEPS, temperature=0, ignore_eos=True, detokenize=False)
    names = [f"t{seed}x{i}" for i in range(batch)]
    began = time.perf_counter()
    for i, name in enumerate(names):
        engine.add_request(name, prompt(context, seed=seed * batch + i), params)
    decoding: set[str] = set()
    while len(decoding) < batch:
        decoding |= {out.request_id for out in engine.step()}
    middle = time.perf_counter()
    tokens = sum(len(engine.step()) for _ in range(STEPS))
    end = time.perf_counter()
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()
    return round(batch * context / (middle - began), 1), round(tokens / (end - middle), 1)


def ours(save: Path, engines: Sequence[Path], rounds: int) -> Iterator[int]:
    """Yield the number of each of our turns when it comes. Engines that did not start, or ended, are passed over."""
    save.with_suffix(".ready").touch()
    _until(lambda: all(_ready(one) or _ended(one) for one in engines), "engines to start")
    there = [one for one in engines if _ready(one)]
    place = there.index(save)
    for number in range(rounds):
        due = [(one, number + (i < place)) for i, one in enumerate(there) if i != place]
        _until(partial(_came, due), "other engines' turns")
        yield number
        save.with_suffix(".taken").write_text(str(number + 1))


def _came(due: Sequence[tuple[Path, int]]) -> bool:
    return all(_ended(one) or _taken(one) >= turns for one, turns in due)


def _ready(one: Path) -> bool:
    return one.with_suffix(".ready").exists()


def _taken(one: Path) -> int:
    file = one.with_suffix(".taken")
    return int(file.read_text() or 0) if file.exists() else 0


def _ended(one: Path) -> bool:
    return one.with_suffix(".ended").exists()


def _until(holds: Callable[[], bool], what: str) -> None:
    end = time.time() + PATIENCE_S
    while not holds():
        if time.time() > end:
            raise TimeoutError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.002)
