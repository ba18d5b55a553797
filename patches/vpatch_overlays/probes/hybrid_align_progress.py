"""The chunks of a long prompt to a hybrid model with prefix caching, beside requests that decode: they go on."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from vpatch_overlays.probes.bare import expect, settle

BLOCK, DRAFTS, PROMPT = 4192, 3, 20_000


def main() -> None:
    """Schedule a prompt beside one request that decodes, with a budget of one block."""
    settle()
    beside = 1 + DRAFTS
    ends = [*chunks(scheduler(), PROMPT, [BLOCK - beside] * 12)]
    expect("tokens of a long prompt that 12 steps compute beside decodes", PROMPT, ends[-1])
    expect("ends of its chunks at the ends of blocks", [BLOCK, 2 * BLOCK, 3 * BLOCK], aligned(ends, BLOCK, PROMPT)[:3])
    roomy = [*chunks(scheduler(2 * BLOCK), PROMPT, [2 * BLOCK - beside] * 5)]
    expect("ends of chunks with room for a block", [BLOCK, 2 * BLOCK, 3 * BLOCK, PROMPT, PROMPT], roomy)


def scheduler(budget: int = BLOCK, block: int = BLOCK, drafts: int = DRAFTS, threshold: int = 0) -> Any:
    """Return what the split reads of a scheduler in mode "align".

    Args:
        budget: the tokens of a step.
        block: the tokens of a block, of attention and of Mamba layers alike.
        drafts: draft tokens a step; without any, the last block of a prompt is saved, too.
        threshold: the longest chunk of a prompt; 0: no bound.
    """
    eagle = drafts > 0
    return SimpleNamespace(
        cache_config=SimpleNamespace(block_size=block, mamba_block_size=block), block_size=block, hash_block_size=block,
        use_eagle=eagle, use_eagle_block_drop=eagle, num_spec_tokens=drafts, max_num_scheduled_tokens=budget,
        scheduler_config=SimpleNamespace(long_prefill_token_threshold=threshold), num_hash_lookahead_tokens=0,
        mamba_partial_cache_hit=False, mamba_fine_grained_prefix_cache=False, mamba_shared_prefix_checkpoint=False,
        mamba_has_prefill_checkpoint_blocks=False, mamba_prefill_checkpoint_alignment=None,
    )  # fmt: skip


def chunks(held: Any, prompt: int, left: list[int], start: int = 0) -> Iterator[int]:
    """Yield the tokens of a prompt that are computed after each step.

    Args:
        held: as from `scheduler`.
        prompt: the tokens of the prompt.
        left: for each step, the tokens that its decodes leave of the budget.
        start: the tokens that are computed, as of a prefix in the cache.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    for tokens in left:
        request = SimpleNamespace(
            num_computed_tokens=start, num_prompt_tokens=prompt, num_tokens=prompt, shared_prefix_boundary=0
        )
        if asked := min(tokens, prompt - start, held.scheduler_config.long_prefill_token_threshold or prompt):
            start += Scheduler._mamba_block_aligned_split(held, request, asked)
        yield start


def aligned(ends: list[int], block: int, prompt: int) -> list[int]:
    """Return the ends of chunks at the ends of blocks, once each."""
    return sorted({end for end in ends if end and end % block == 0 and end < prompt})


if __name__ == "__main__":
    main()
