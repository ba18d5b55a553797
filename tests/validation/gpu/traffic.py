"""Requests that share one engine: who asks what, and the answers with the log-probability of each token.

Answers are kept as JSON lines while the engine runs, so that another engine can replay them at the same time.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.validation.gpu.probe import prompt


@dataclass(frozen=True)
class Ask:
    """A prompt to be answered with this many tokens, or by structured output with this many digits.

    Answers are compared by `part`. `among`: the answer's tokens are those of `few`; empty: any.
    """

    name: str
    prompt: tuple[int, ...]
    tokens: int
    part: str = "answer"
    digits: int = 0
    among: tuple[int, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A request's answer.

    prompt, ids: the prompt's tokens and those of the answer.
    logprobs: of each token of the answer, in nats, as the engine reported it.
    cached: the prompt's tokens that the engine took from the prefix cache.
    digits: how many it was to have and nothing else; 0: anything.
    """

    name: str
    part: str
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached: int = 0
    digits: int = 0


Feed = Callable[[int, Sequence[Answer]], Sequence[Ask]]
"""Called before each step with the requests in flight and the answers since the last call; returns new requests."""


def run(llm: Any, feed: Feed, *, more: Callable[[], bool] = lambda: False) -> Iterator[Answer]:
    """Yield answers as they are complete, until nothing is in flight and `feed` has no new request.

    Args:
        llm: the engine.
        feed: the requests.
        more: whether `feed` may still have requests when nothing is in flight.
    """
    engine, asked, fresh = llm.llm_engine, dict[str, Ask](), list[Answer]()
    while True:
        for ask in feed(len(asked), fresh):
            asked[ask.name] = ask
            params = parameters(ask.tokens, ask.digits, ask.among)
            engine.add_request(ask.name, {"prompt_token_ids": list(ask.prompt)}, params)
        fresh = []
        if not asked:
            if not more():
                return
            time.sleep(0.01)
            continue
        for out in engine.step():
            if out.finished:
                ask, (one,) = asked.pop(out.request_id), out.outputs
                ids = tuple(one.token_ids)
                logprobs = tuple(row[token].logprob for token, row in zip(ids, one.logprobs, strict=True))
                cached = out.num_cached_tokens or 0
                fresh.append(Answer(ask.name, ask.part, ask.prompt, ids, logprobs, cached, ask.digits))
        yield from fresh


def parameters(tokens: int, digits: int = 0, among: Sequence[int] = ()) -> Any:
    """Return greedy sampling of so many tokens, reported once, with the log-probability of each.

    Args:
        tokens: of the answer, at most.
        digits: by structured output, that many digits and the token that ends the answer; 0: any tokens.
        among: the tokens to choose from; empty: all. The log-probabilities are those of a choice from all.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    grammar = StructuredOutputsParams(regex=f"[0-9]{{{digits}}}") if digits else None
    return SamplingParams(
        max_tokens=tokens, temperature=0, ignore_eos=not digits, detokenize=False, logprobs=1,
        output_kind=RequestOutputKind.FINAL_ONLY, structured_outputs=grammar, allowed_token_ids=[*among] or None,
    )  # fmt: skip


def in_turn(asks: Sequence[Ask], at_once: int) -> Feed:
    """Feed requests one by one: one at each third step, and no more than `at_once` in flight."""
    waiting, steps = list(asks), [0]

    def feed(flying: int, _: Sequence[Answer]) -> Sequence[Ask]:
        steps[0] += 1
        return [waiting.pop(0)] if waiting and flying < at_once and (steps[0] % 3 == 1 or not flying) else []

    return feed


def mixed(count: int) -> list[Ask]:
    """Return requests of different lengths. Their answers are short, so that rows often move."""
    return [Ask(f"r{i}", tuple(prompt(40 + 137 * i % 900, seed=i)["prompt_token_ids"]), 12 + 61 * i % 90)
            for i in range(count)]  # fmt: skip


@dataclass
class Clients:
    """Clients that hold conversations: each pauses for a random time, asks, and often goes on from what was said.

    end: when the last request may be asked, in seconds since the epoch.
    pause: mean pause between an answer and the client's next request, in seconds.
    longest: a conversation of more tokens begins anew.
    structured: the share of requests for structured output.
    """

    count: int
    end: float
    pause: float
    longest: int
    structured: float = 0.0
    asked: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(7)  # noqa: S311
        now = time.time()
        self._ready = {client: now + self._random.expovariate(1 / self.pause) for client in range(self.count)}
        self._said: dict[int, tuple[int, ...]] = dict.fromkeys(range(self.count), ())

    def feed(self, _: int, answers: Sequence[Answer]) -> Sequence[Ask]:
        """Return the requests of clients whose pause is over."""
        now = time.time()
        for answer in answers:
            client = int(answer.part)
            self._said[client] = answer.prompt + answer.ids
            self._ready[client] = now + self._random.expovariate(1 / self.pause)
        due = [client for client, when in self._ready.items() if when <= now < self.end]
        return [self._next(client) for client in due]

    def more(self) -> bool:
        return time.time() < self.end

    def _next(self, client: int) -> Ask:
        del self._ready[client]
        before = self._said[client]
        if len(before) > self.longest or self._random.random() < 0.2:
            before = ()
        self.asked += 1
        new = prompt(int(self._random.choice((50, 400, 1500, 4000))), seed=1000 + self.asked)["prompt_token_ids"]
        tokens = self._random.randrange(32, 320)
        # No number is drawn where nothing is structured: a soak's requests stay those of earlier runs.
        digits = tokens - 1 if self.structured and self._random.random() < self.structured else 0
        return Ask(f"r{self.asked}", (*before, *new), tokens, part=str(client), digits=digits)


def append(file: Path, answer: Answer) -> None:
    with file.open("a") as stream:
        stream.write(json.dumps(asdict(answer)) + "\n")


@dataclass
class Tail:
    """Answers in a file that another process is writing."""

    file: Path
    position: int = 0

    @property
    def ended(self) -> bool:
        return self.file.with_suffix(".ended").exists()

    def fresh(self) -> list[Answer]:
        if not self.file.exists():
            return []
        with self.file.open() as stream:
            stream.seek(self.position)
            text = stream.read()
        whole = text[: text.rfind("\n") + 1]
        self.position += len(whole)
        found = []
        for line in whole.splitlines():
            fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(line).items()}
            found.append(Answer(**fields))
        return found
