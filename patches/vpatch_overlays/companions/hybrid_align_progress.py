"""Where a chunk of a prompt ends that does not reach the end of its block.

Imported by `vllm/v1/core/sched/scheduler.py`: nothing heavy at module level.
"""

from __future__ import annotations


def end_within_block(start: int, end: int, limit: int, drafts: int) -> int:
    """Return where to end a chunk that stays within a block, counted in tokens of the prompt.

    The model runner may take a chunk of 1 + `drafts` tokens, or of one token, for a row that decodes. So the chunk, and
    what it leaves up to `limit`, are both longer than that.

    Args:
        start: the tokens that are computed.
        end: where the chunk would end if it took all that is left of the step's budget, below `limit`.
        limit: where a later chunk has to end: at the end of the block, or of the prompt.
        drafts: the draft tokens of a row that decodes.

    Returns:
        The end of the chunk; `start` if there is no such chunk.
    """
    least = drafts + 2
    end = min(end, limit - least)
    return end if end - start >= least else start
