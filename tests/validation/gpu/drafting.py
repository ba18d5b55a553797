"""Steps of probes about speculative decoding, run inside the engine's process (see scenarios.Probe)."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.validation.gpu import traffic
from tests.validation.gpu.compiling import starts
from tests.validation.gpu.counting import Counts
from tests.validation.gpu.decoding import alone, beside, decode_speeds, draft_speed, resplit
from tests.validation.gpu.induction import repeated
from tests.validation.gpu.models import DIGITS, END
from tests.validation.gpu.pacing import turns
from tests.validation.gpu.probe import prompt, say, worker_of
from tests.validation.gpu.running import loaded
from tests.validation.gpu.scheduling import progress, units
from tests.validation.gpu.starting import continued
from tests.validation.gpu.traffic import Answer, Ask, Tail

ANSWERED = 96
"""Tokens of an answer whose log-probabilities are compared."""
AT_ONCE = 8
RESERVE_S = 15
"""Time to report, before the driver stops a replay."""
BEGAN = time.time()

Spec = Mapping[str, Any]


def engine(llm: Any, _: Sequence[int], __: Spec) -> None:
    """Print what decides which code runs: the runner, asynchronous scheduling, CUDA graphs and their sizes."""
    config = llm.llm_engine.vllm_config
    runner = type(worker_of(llm).model_runner)
    say(
        runner=f"{runner.__module__}.{runner.__name__}",
        asynchronous=config.scheduler_config.async_scheduling,
        graphs=str(config.compilation_config.cudagraph_mode),
        sizes=list(config.compilation_config.cudagraph_capture_sizes or ())[:8],
        mamba=getattr(config.cache_config, "mamba_cache_mode", None),
    )


def counts(llm: Any, lengths: Sequence[int], _: Spec, *, early: bool = False) -> None:
    """Serve requests for so many steps, and compare each request's accepted count with the one that its step left.

    Args:
        llm: the engine.
        lengths: the number of steps.
        early: wait for the device before rows move, so that every count arrives before that.
    """
    (steps,) = lengths
    seen = Counts(worker_of(llm).model_runner, early=early)
    asks = traffic.in_turn(traffic.mixed(400), AT_ONCE)
    answers = 0
    for _answer in traffic.run(llm, lambda flying, new: asks(flying, new) if seen.steps < steps else ()):
        answers += 1
    say(steps=seen.steps, rows=seen.rows, mismatches=seen.mismatches, wrong_steps=seen.wrong_steps,
        accepted={str(n): seen.accepted[n] for n in sorted(seen.accepted)}, examples=seen.examples[:5],
        answers=answers)  # fmt: skip


def counts_early(llm: Any, lengths: Sequence[int], spec: Spec) -> None:
    """As `counts`, with every count there before rows move."""
    counts(llm, lengths, spec, early=True)


def converse(llm: Any, lengths: Sequence[int], spec: Spec) -> None:
    """Hold so many conversations of two turns; the second prompt begins with the first and its answer.

    The first prompt has 1.5 blocks, its answer ends at 2.2 blocks, and the second prompt adds one block.
    """
    block = llm.llm_engine.vllm_config.cache_config.block_size
    (conversations,) = lengths
    for i in range(conversations):
        start = tuple(prompt(3 * block // 2, seed=i)["prompt_token_ids"])
        (first,) = _answers(llm, [Ask(f"c{i}a", start, int(2.2 * block) - len(start), "first")], spec)
        longer = (*first.prompt, *first.ids, *prompt(block, seed=100 + i)["prompt_token_ids"])
        (second,) = _answers(llm, [Ask(f"c{i}b", longer, ANSWERED, "second")], spec)
        say(conversation=i, block=block, prompt=len(second.prompt), cached=second.cached)


def answer(llm: Any, lengths: Sequence[int], spec: Spec) -> None:
    asks = [Ask(f"r{i}", tuple(prompt(n, seed=i)["prompt_token_ids"]), ANSWERED) for i, n in enumerate(lengths)]
    found = _answers(llm, asks, spec)
    say(answers=len(found), asked=len(asks))


def sparse(llm: Any, lengths: Sequence[int], spec: Spec) -> None:
    """Answer prompts of few kinds of tokens with as few, so that n-grams of an answer are often, not always, in them.

    The arguments are the kinds, and the lengths of the prompts.
    """
    kinds, *rest = lengths
    among = tuple(range(10, 10 + kinds))
    texts = [tuple(among[one % kinds] for one in prompt(n, seed=i)["prompt_token_ids"]) for i, n in enumerate(rest)]
    found = _answers(llm, [Ask(f"r{i}", text, ANSWERED, among=among) for i, text in enumerate(texts)], spec)
    say(answers=len(found), asked=len(texts))


def soak(llm: Any, lengths: Sequence[int], spec: Spec) -> None:
    """Let clients converse.

    The arguments are the seconds, the number of clients, their mean pause in milliseconds, and of a hundred requests
    those for structured output. An answer to one of these is not kept to be decoded again: its log-probabilities are
    those of the tokens that its grammar allows.
    """
    seconds, clients, pause, structured = lengths
    those = traffic.Clients(clients, time.time() + seconds, pause / 1000, longest=9000, structured=structured / 100)
    most = [0]

    def feed(flying: int, new: Sequence[Answer]) -> Sequence[Ask]:
        most[0] = max(most[0], flying)
        return those.feed(flying, new)

    count = tokens = cached = grammars = 0
    wrong: list[str] = []
    for one in traffic.run(llm, feed, more=those.more):
        count, tokens, cached = count + 1, tokens + len(one.ids), cached + one.cached
        if not one.digits:
            traffic.append(_file(spec), one)
            continue
        grammars += 1
        if one.ids[-1] != END or len(one.ids) != one.digits + 1 or not DIGITS.issuperset(one.ids[:-1]):
            wrong.append(one.name)
    say(soak_s=seconds, asked=those.asked, answers=count, tokens=tokens, cached=cached, most_at_once=most[0],
        budget=llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens,
        **({"structured": grammars, "against_grammar": wrong[:20]} if structured else {}))  # fmt: skip


def repeat(llm: Any, lengths: Sequence[int], _: Spec) -> None:
    """Continue a repeated text by 200 tokens, alone and from four offsets side by side."""
    (length,) = lengths
    text, pattern = repeated(length)
    wanted = [pattern[(length + i) % len(pattern)] for i in range(200)]
    alone = [Ask("repetition", tuple(text), len(wanted), "alone")]
    beside = [Ask(f"offset{i}", tuple(text[i * len(pattern) :]), len(wanted), f"beside {i}") for i in range(4)]
    for asks in (alone, beside):
        for one in sorted(traffic.run(llm, traffic.in_turn(asks, AT_ONCE)), key=lambda one: one.name):
            right = [a == b for a, b in zip(one.ids, wanted, strict=True)]
            digest = hashlib.sha256(json.dumps(one.ids).encode()).hexdigest()[:16]
            say(repetition=one.part, ids=len(one.ids), digest=digest, right=sum(right),
                first_wrong=None if all(right) else right.index(False), begins=list(one.ids[:8]))  # fmt: skip


def replay(llm: Any, _: Sequence[int], spec: Spec) -> None:
    """Decode other engines' answers again, each token forced to be theirs, and compare the log-probabilities.

    Spec's "of" has the names of those probes and the files with their answers, which may still be written. Requests
    that could not be decoded before this probe is stopped are counted as `left`.
    """
    end = BEGAN + spec["limit_s"] - RESERVE_S
    forced: dict[str, tuple[int, ...]] = {}
    _force(worker_of(llm).model_runner, forced)
    tails = {name: Tail(Path(file)) for name, file in spec["of"].items()}
    most = llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
    number = count()
    theirs: dict[str, tuple[str, Answer]] = {}
    waiting: list[Ask] = []
    gaps: dict[tuple[str, str], list[float]] = {}
    requests: Counter[tuple[str, str]] = Counter()

    def feed(flying: int, _: Sequence[Answer]) -> Sequence[Ask]:
        for name, tail in tails.items():
            for one in map(_from_two_tokens, tail.fresh()):
                key = f"a{next(number)}"  # a replay's answers are of several probes, whose requests share names
                theirs[key], forced[key] = (name, one), one.ids
                waiting.append(Ask(key, one.prompt, len(one.ids), one.part))
        asks = waiting[: max(0, most - flying)] if time.time() < end else []
        del waiting[: len(asks)]
        return asks

    def more() -> bool:
        return time.time() < end and (bool(waiting) or not all(tail.ended for tail in tails.values()))

    for one in traffic.run(llm, feed, more=more):
        name, other = theirs.pop(one.name)
        if one.ids != other.ids:
            raise ValueError(f"{one.name}: other tokens were decoded than were forced")
        part = (name, other.part if other.part in ("first", "second") else "answer")
        gaps.setdefault(part, []).extend(b - a for a, b in zip(one.logprobs, other.logprobs, strict=True))
        requests[part] += 1
        traffic.append(_file(spec), Answer(other.name, other.part, one.prompt, one.ids, one.logprobs))
    for (name, kind), apart in sorted(gaps.items()):
        say(replayed=name, part=kind, requests=requests[name, kind], **summary(apart), left=len(theirs))


def _from_two_tokens(one: Answer) -> Answer:
    """Return an answer to a prompt of two tokens or more: a prompt of one token is what some overlay is about."""
    more = max(0, 2 - len(one.prompt))
    prompt = (*one.prompt, *one.ids[:more])
    return replace(one, prompt=prompt, ids=one.ids[more:], logprobs=one.logprobs[more:])


def summary(apart: Sequence[float]) -> dict[str, float]:
    """Return the number of differences, and in nats the mean of their sizes, their own mean, and the largest sizes."""
    sizes = sorted(abs(gap) for gap in apart)
    return {
        "tokens": len(sizes),
        "mean": round(fmean(sizes), 6),
        "bias": round(fmean(apart), 6),
        "p99": round(sizes[math.ceil(0.99 * len(sizes)) - 1], 4),
        "max": round(sizes[-1], 4),
    }


def _force(runner: Any, forced: Mapping[str, tuple[int, ...]]) -> None:
    """Have the runner's sampler choose the given tokens, by request. The scheduler must be synchronous."""
    original = runner.sampler.sample

    def sample(logits: Any, *arguments: Any, **named: Any) -> Any:
        sampled, processed = original(logits, *arguments, **named)
        for row, name in enumerate(runner.input_batch.req_ids[: len(sampled)]):
            wanted = forced.get(name) or forced.get(name.partition("-")[0], ())  # vLLM may add a suffix to a name
            done = len(runner.requests[name].output_token_ids)
            if done < len(wanted):
                sampled[row] = wanted[done]
        return sampled, processed

    runner.sampler.sample = sample


def _answers(llm: Any, asks: Sequence[Ask], spec: Spec) -> list[Answer]:
    found = []
    for one in traffic.run(llm, traffic.in_turn(asks, AT_ONCE)):
        traffic.append(_file(spec), one)
        found.append(one)
    return found


def _file(spec: Spec) -> Path:
    return Path(f"{spec['save']}.answers")


STEPS: dict[str, Callable[[Any, Sequence[int], Spec], None]] = {
    "engine": engine, "counts": counts, "counts early": counts_early, "converse": converse, "answer": answer,
    "soak": soak, "repeat": repeat, "replay": replay, "turns": turns, "decode speeds": decode_speeds,
    "draft speed": draft_speed, "splits": resplit, "loaded": loaded, "alone": alone, "beside": beside,
    "continued": continued, "progress": progress, "units": units, "sparse": sparse, "starts": starts,
}  # fmt: skip
