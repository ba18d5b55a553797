"""Steps of probes about the chunks of prompts to hybrid models, run inside the engine's process (see engines.Probe)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.validation.gpu import traffic
from tests.validation.gpu.probe import prompt, say
from tests.validation.gpu.traffic import Ask

ANSWERED, WARM, SMALLEST = 96, 12, 16
"""Tokens of an answer, steps before a long prompt comes, and the tokens of the smallest block of some layer."""

Spec = Mapping[str, Any]


def progress(llm: Any, lengths: Sequence[int], spec: Spec) -> None:
    """Let a prompt come beside a request that decodes, with a budget of one block, and then ask twice with its text.

    Args:
        llm: the engine. Its budget is set to the tokens of a block, which are known by now.
        lengths: the tokens of the prompt, and the most steps until its first token.
        spec: the probe's.
    """
    length, most = lengths
    engine, scheduler = llm.llm_engine, _scheduler(llm)
    budget, block = scheduler.max_num_scheduled_tokens, engine.vllm_config.cache_config.block_size
    scheduler.max_num_scheduled_tokens = block
    engine.add_request("decode", prompt(40), traffic.parameters(3000))
    for _ in range(WARM):
        engine.step()
    text = prompt(length, seed=77)
    engine.add_request("long", text, traffic.parameters(1))
    steps = (number for number in range(1, most + 1) if any(_is("long", out.request_id) for out in engine.step()))
    first = next(steps, None)
    computed = [one.num_computed_tokens for name, one in scheduler.requests.items() if _is("long", name)]
    say(progress=length, block=block, first_token=first, computed=length if first else computed[0])
    engine.abort_request(["decode"])
    while engine.has_unfinished_requests():
        engine.step()
    scheduler.max_num_scheduled_tokens = budget
    known = tuple(text["prompt_token_ids"])
    longer = (*known, *prompt(300, seed=5)["prompt_token_ids"])
    _answer(llm, [Ask("again", known, ANSWERED), Ask("longer", longer, ANSWERED)], spec)


def units(llm: Any, lengths: Sequence[int], spec: Spec) -> None:
    """Hold so many conversations of two turns, where a layer seems to have smaller blocks than those with states."""
    cache = llm.llm_engine.vllm_config.cache_config
    block, cache.block_size = cache.block_size, SMALLEST
    (conversations,) = lengths
    for i in range(conversations):
        start = tuple(prompt(3 * block + 100, seed=i)["prompt_token_ids"])
        longer = (*start, *prompt(block + 37, seed=50 + i)["prompt_token_ids"])
        _answer(llm, [Ask(f"c{i}a", start, ANSWERED)], spec)
        _answer(llm, [Ask(f"c{i}b", longer, ANSWERED)], spec)


def _scheduler(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def _is(name: str, request: str) -> bool:
    """Whether a request has this name; vLLM may add a suffix."""
    return request.partition("-")[0] == name


def _answer(llm: Any, asks: Sequence[Ask], spec: Spec) -> None:
    """Answer one by one, keep the answers, and print their number, and how much of each prompt was in the cache."""
    found = list(traffic.run(llm, traffic.in_turn(asks, 1)))
    for one in found:
        traffic.append(Path(f"{spec['save']}.answers"), one)
    say(answers=len(found), asked=len(asks), prompts=[len(one.prompt) for one in found],
        cached=[one.cached for one in found])  # fmt: skip
