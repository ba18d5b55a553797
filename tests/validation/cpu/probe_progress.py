"""Chunks of prompts of a hybrid model: what a release's own split and scheduler make of drawn steps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from vpatch_overlays.probes.bare import engine_config
from vpatch_overlays.probes.hybrid_align_progress import chunks, scheduler
from vpatch_overlays.probes.turboquant_hybrid import HYBRID

BLOCK = 64
"""Tokens of a block of the real scheduler."""

CHUNKS, WAYS = 6000, 600
"""Single chunks, and whole prompts, to draw."""


def drawn(draw: random.Random) -> dict[str, int]:
    """Draw a deployment and a prompt."""
    block = draw.choice((16, 64, 528, 1600, 4192))
    return {
        "block": block,
        "budget": draw.choice((block, block + draw.randrange(64), 2 * block, 3 * block, max(block // 2, 8))),
        "drafts": draw.choice((0, 1, 2, 3, 5)),
        "threshold": draw.choice((0, 0, 0, draw.randrange(8, 2 * block))),
        "prompt": draw.randrange(1, 6 * block),
    }


def single() -> Iterator[dict[str, int]]:
    """Yield chunks that begin where a block does, or anywhere, with what is left of a budget."""
    draw = random.Random(5)  # noqa: S311 - it is to be repeatable
    for _ in range(CHUNKS):
        case = drawn(draw)
        prompt = case.pop("prompt")
        start = draw.randrange(prompt)
        start -= start % case["block"] if draw.random() < 0.6 else 0
        left = draw.randint(1, case["budget"])
        (end,) = chunks(scheduler(**case), prompt, [left], start)
        yield case | {"prompt": prompt, "start": start, "left": left, "end": end}


def whole() -> Iterator[dict[str, Any]]:
    """Yield prompts beside decodes that leave at least 2 k + 3 tokens of each step, and the ends of their chunks."""
    draw = random.Random(6)  # noqa: S311 - it is to be repeatable
    for _ in range(WAYS):
        case = drawn(draw)
        prompt, least = case.pop("prompt"), 2 * case["drafts"] + 3
        budget = case["budget"] = max(case["budget"], least)
        case["threshold"] = case["threshold"] and max(case["threshold"], least)
        busy = draw.randint(least, budget)
        left = [draw.choice((busy, busy, draw.randint(least, budget))) for _ in range(prompt // least + 20)]
        ends = [*chunks(scheduler(**case), prompt, left)]
        yield case | {"prompt": prompt, "ends": ends}


class Real:
    """vLLM's own scheduler of a hybrid model, with prefix caching and a budget of one block."""

    def __init__(self) -> None:
        """Begin with a request that decodes."""
        import torch
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
        from vllm.v1.structured_output import StructuredOutputManager

        config = engine_config(
            HYBRID, kv_cache_dtype="auto", enable_prefix_caching=True, max_num_batched_tokens=8192, max_num_seqs=8
        )
        config.scheduler_config.max_num_batched_tokens = BLOCK
        vars(config.scheduler_config)["max_num_scheduled_tokens"] = BLOCK
        cache = config.cache_config
        cache.mamba_cache_mode, cache.num_gpu_blocks = "align", 99
        cache.block_size = cache.mamba_block_size = BLOCK
        attention = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
        kept = {"mamba_cache_mode": "align", "num_speculative_blocks": 3}  # those of drafts move with the state
        state = MambaSpec(block_size=BLOCK, shapes=((1, 8),), dtypes=(torch.float32,), **kept)
        groups = [KVCacheGroupSpec(["attention"], attention), KVCacheGroupSpec(["state"], state)]
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks=99, kv_cache_tensors=[], kv_cache_groups=groups),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
        )
        self.add("decode", 8, 100)
        self.step()

    def add(self, name: str, prompt: int, answer: int) -> None:
        """Queue a request."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        init_none_hash(hash)
        self.scheduler.add_request(
            Request(
                name, list(range(prompt)), SamplingParams(max_tokens=answer, ignore_eos=True), None,
                block_hasher=get_request_block_hasher(BLOCK, lambda value: repr(value).encode()[-32:]),
            )
        )  # fmt: skip

    def step(self) -> dict[str, int]:
        """Schedule a step, and let each finished prompt have a token; return the tokens of each request."""
        from vllm.v1.outputs import ModelRunnerOutput

        made = self.scheduler.schedule()
        names = list(made.num_scheduled_tokens)
        requests = self.scheduler.requests
        sampled = [[7] if requests[one].num_computed_tokens >= requests[one].num_tokens else [] for one in names]
        output = ModelRunnerOutput(
            req_ids=names, req_id_to_index={one: at for at, one in enumerate(names)}, sampled_token_ids=sampled,
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
        )  # fmt: skip
        self.scheduler.update_from_output(made, output)
        return dict(made.num_scheduled_tokens)


def real() -> dict[str, Any]:
    """Schedule a long prompt beside a request that decodes, then the prompt again."""
    held = Real()
    held.add("long", 300, 2)
    chunks = [step.get("long", 0) for step in (held.step() for _ in range(20))]
    held.add("again", 300, 2)
    again = [step.get("again", 0) for step in (held.step() for _ in range(8))]
    return {"long": chunks, "again": again}


def main(_home: str) -> dict[str, Any]:
    return {"single": list(single()), "whole": list(whole()), "real": real()}
