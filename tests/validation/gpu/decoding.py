"""Speed of decode steps, in tokens per second and in the GPU's own time, and which kernels compile after the start.

Several engines are on the device and measure in turn (see `pacing`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from cProfile import Profile
from functools import partial
from pathlib import Path
from pstats import Stats
from typing import Any

from tests.validation.gpu.induction import repeated
from tests.validation.gpu.pacing import ours
from tests.validation.gpu.probe import decoding, prompt, say

SETTLING, STEPS, WINDOWS, TRACED = 32, 64, 3, 8
"""Decode steps before the first window, in each window, and in a trace."""


def decode_speeds(llm: Any, lengths: Sequence[int], spec: Mapping[str, Any]) -> None:
    """Measure decode steps: a batch and its context, in tokens, after another.

    All speeds come first, then all traces: after a trace the host is slower for a while.
    """
    shapes = list(zip(lengths[::2], lengths[1::2], strict=True))
    with compilations() as compiled:
        turns = ours(Path(spec["save"]), [Path(one) for one in spec["turns"]], 2 * len(shapes))
        for number in turns:
            batch, context = shapes[number % len(shapes)]
            with decoding(llm, context, batch, SETTLING) as step:
                if number < len(shapes):
                    say(decode_batch=batch, context=context, tokens_per_s=_windows(step))
                else:
                    say(decode_batch=batch, context=context, **_trace(step))
    say(compiled_while_serving=compiled)


def alone(llm: Any, lengths: Sequence[int], spec: Mapping[str, Any]) -> None:
    """Measure decode steps of one request in each of our turns, and in a last one where the host's time goes.

    The arguments are the context in tokens, and the turns, the first of which is not printed.
    """
    context, rounds = lengths
    rates: list[list[float]] = []
    for number in ours(Path(spec["save"]), [Path(one) for one in spec["turns"]], rounds + 2):
        with decoding(llm, context, 1, SETTLING) as step:
            if number <= rounds:
                rates.append(_windows(step))
            else:
                say(host_ms=_host(step))
    say(alone=context, turns_per_s=rates[1:])


def beside(llm: Any, lengths: Sequence[int], spec: Mapping[str, Any]) -> None:
    """Time a prompt beside decodes, until its first token, in each of our turns.

    The arguments are the batch that decodes and its context, the prompt's tokens, and the turns, the first of which is
    not printed.
    """
    import torch
    from vllm import SamplingParams

    batch, context, length, rounds = lengths
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, detokenize=False)
    took, decoded = [], []
    for number in ours(Path(spec["save"]), [Path(one) for one in spec["turns"]], rounds + 1):
        with decoding(llm, context, batch, SETTLING) as step:
            torch.cuda.synchronize()
            began, tokens, ended = time.perf_counter(), 0, False
            llm.llm_engine.add_request(f"prompt{number}", prompt(length, seed=1000 + number), params)
            while not ended:
                outs = step()
                ended = any(out.request_id.startswith("prompt") and out.finished for out in outs)
                tokens += len(outs)
            torch.cuda.synchronize()
            took.append(round(time.perf_counter() - began, 4))
            decoded.append(tokens - 1)
    say(beside=batch, context=context, length=length, took_s=took[1:], decoded=decoded[1:])


def resplit(_llm: Any, splits: Sequence[int], _spec: Mapping[str, Any]) -> None:
    """Let vLLM's kernel split continued pieces of prompts otherwise, so that it sums in another order.

    No argument of the engine reaches that call.
    """
    from vllm.v1.attention.backends import turboquant_attn

    (count,) = splits
    launcher = turboquant_attn.triton_turboquant_decode_attention
    turboquant_attn.triton_turboquant_decode_attention = partial(launcher, max_num_kv_splits=count)
    say(splits=count)


def draft_speed(llm: Any, lengths: Sequence[int], spec: Mapping[str, Any]) -> None:
    """Measure answers that continue a repeated text, of which n-gram drafts are mostly right.

    The arguments are requests, tokens of a prompt and of an answer, and turns, the first of which is not printed.
    """
    from vllm import SamplingParams

    requests, length, new, rounds = lengths
    engine = llm.llm_engine
    params = SamplingParams(max_tokens=new, temperature=0, ignore_eos=True, detokenize=False)
    text, _ = repeated(length)
    speeds, in_a_step = [], []
    for number in ours(Path(spec["save"]), [Path(one) for one in spec["turns"]], rounds + 1):
        for i in range(requests):
            engine.add_request(f"n{number}x{i}", {"prompt_token_ids": text[i:]}, params)
        have: dict[str, int] = {}
        began, first, steps = 0.0, 0, 0
        while engine.has_unfinished_requests():
            have |= {out.request_id: len(out.outputs[0].token_ids) for out in engine.step()}
            if began:
                steps += 1
            elif len(have) == requests:
                began, first = time.perf_counter(), sum(have.values())
        tokens = sum(have.values()) - first
        speeds.append(round(tokens / (time.perf_counter() - began), 1))
        in_a_step.append(round(tokens / steps / requests, 2))
    say(answers_per_s=speeds[1:], requests=requests, tokens_in_a_step=in_a_step[1:])


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Collect the names of the Triton kernels that are compiled, or loaded from Triton's cache."""
    from triton import knobs

    found: list[str] = []

    def note(*_: Any, **about: Any) -> None:
        found.append(str(getattr(about.get("fn"), "name", about.get("repr"))))

    before = knobs.runtime.jit_post_compile_hook
    knobs.runtime.jit_post_compile_hook = note
    try:
        yield found
    finally:
        knobs.runtime.jit_post_compile_hook = before


def _windows(step: Callable[[], Any]) -> list[float]:
    import torch

    found = []
    for _ in range(WINDOWS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        tokens = sum(len(step()) for _ in range(STEPS))
        torch.cuda.synchronize()
        found.append(round(tokens / (time.perf_counter() - began), 1))
    return found


def _host(step: Callable[[], Any]) -> dict[str, float]:
    """Return the milliseconds that each of vLLM's functions takes of a step on the host, with what it calls.

    The profiler slows each call down, so these say what differs between two engines, not how long a step takes.
    """
    with Profile() as profiler:
        for _ in range(STEPS):
            step()
    rows = Stats(profiler).stats.items()  # type: ignore[attr-defined]
    spent = {f"{Path(file).name}:{name}": row[3] / STEPS * 1000 for (file, _, name), row in rows if "/vllm/" in file}
    longest = sorted(spent.items(), key=lambda item: -item[1])[:80]
    return {name: round(ms, 3) for name, ms in longest}


def _trace(step: Callable[[], Any]) -> dict[str, Any]:
    """Return how long the GPU is busy in a step, in milliseconds, and by kernel for those that take longest."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        for _ in range(TRACED):
            step()
        torch.cuda.synchronize()
    events = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
    spans = sorted((event.time_range.start, event.time_range.end) for event in events)
    by_name: dict[str, float] = {}
    for event in events:
        by_name[event.name[:80]] = by_name.get(event.name[:80], 0.0) + event.time_range.elapsed_us()
    longest = sorted(by_name.items(), key=lambda item: -item[1])[:16]
    return {
        "busy_ms": round(covered(spans) / TRACED / 1000, 3),
        "kernels_ms": {name: round(us / TRACED / 1000, 4) for name, us in longest},
    }


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of intervals, sorted by their beginnings."""
    total = end = 0.0
    for first, last in spans:
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total
