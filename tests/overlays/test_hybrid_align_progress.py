"""hybrid-align-progress on real releases: its states, what drifts, and its companion."""

from __future__ import annotations

from dataclasses import replace

from vpatch import Use
from vpatch.testing import Case, State
from vpatch_overlays.companions.hybrid_align_progress import end_within_block
from vpatch_overlays.hybrid_align_progress import needed

from tests.overlays.tables import drifted, on, table

SCHEDULER = "vllm/v1/core/sched/scheduler.py"

ALIGNED = "if aligned_end > start or block_size <= max_prefill_tokens:"
TO_LAST = "if end < last_cache_position:\n            end = end // block_size * block_size"
TO_BLOCK = "num_new_tokens = num_new_tokens // block_size * block_size\n            elif"
# As vLLM's main branch had it between 0.26 and 0.27.
TO_LAST_UNLESS_LESS = """if end < last_cache_position:
            max_prefill_tokens = self.max_num_scheduled_tokens
            aligned_end = end // block_size * block_size
            if aligned_end > start or block_size <= max_prefill_tokens:
                end = aligned_end"""

NOT_THERE = "`if $LATER: ...` is not there"

CASES = (
    *on(">=0.18,<0.26", State.PENDING, "0.18 layout; 3 changes"),
    *on(">=0.26,<0.27", State.PENDING, "0.26 layout; 3 changes"),
    *on(">=0.27", State.PENDING, "0.27 layout; 3 changes"),
    Case("0.26.0", State.PENDING, replace={SCHEDULER: (TO_LAST, TO_LAST_UNLESS_LESS)}, says="0.27 layout; 3 changes"),
    *drifted("0.20.2", SCHEDULER, (TO_BLOCK, TO_BLOCK.replace("// block_size", "// 16"), NOT_THERE)),
    *drifted("0.26.0", SCHEDULER, (TO_LAST, TO_LAST.replace("end <", "start < end <"), NOT_THERE)),
    # As the overlay's first sketch, and as upstream may mend it.
    *drifted("0.33.0", SCHEDULER, (ALIGNED, "if aligned_end > start:", "is not there")),
)

test_case = table("hybrid-align-progress", CASES)


def test_who_needs_it() -> None:
    use = Use(hybrid=True, kv_cache_dtype="auto", longest=8192, chunk=2048, prefix_caching=True)

    assert needed(use).needed
    assert needed(replace(use, hybrid=False)).because == "no layer of the model keeps a state"
    assert needed(replace(use, prefix_caching=False)).because == "prefix caching is off"


def test_neither_a_chunk_nor_the_rest_of_a_block_is_as_short_as_a_row_that_decodes() -> None:
    limit = 40
    for drafts in range(6):
        least = drafts + 2
        for start in range(limit):
            for end in range(start + 1, limit):
                found = end_within_block(start, end, limit, drafts)
                right = [at for at in range(start + least, end + 1) if limit - at >= least]
                assert found == max(right, default=start)
