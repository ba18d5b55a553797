"""hybrid-block-units on real releases: its states, what drifts, and who needs it."""

from __future__ import annotations

from dataclasses import replace

from vpatch import Use
from vpatch.testing import Case, State
from vpatch_overlays.hybrid_block_units import needed

from tests.overlays.tables import drifted, on, table

SCHEDULER = "vllm/v1/core/sched/scheduler.py"
STATES = "vllm/v1/worker/gpu/model_states/mamba_hybrid.py"

SMALLEST = "block_size = self.cache_config.block_size\n        # The last"
OWN = SMALLEST.replace("config.block", "config.mamba_block")
DIVIDES = "(new_req_data.num_computed_tokens - 1) //"

CASES = (
    *on(">=0.18,<0.24", State.NOT_APPLICABLE, "this vLLM only makes blocks larger"),
    *on(">=0.24", State.PENDING, "matches the 0.24 layout; 1 change"),
    *drifted(
        "0.24.0", SCHEDULER, ("block_size = self.cache_config.block_size", "block_size = self.block_size", "is not")
    ),
    *drifted("0.31.0", STATES, (DIVIDES, DIVIDES.replace(" - 1", ""), "is not there")),
    # Half of upstream's change is not merged.
    *drifted("0.33.0", STATES, (f"{DIVIDES} mamba_block_size", f"{DIVIDES} self.block_size", "is not there")),
    # Upstream has the second place, and may have the first one.
    Case("0.33.0", State.MERGED, replace={SCHEDULER: (SMALLEST, OWN)}),
)

test_case = table("hybrid-block-units", CASES)


def test_who_needs_it() -> None:
    use = Use(hybrid=True, kv_cache_dtype="auto", longest=8192, chunk=2048, prefix_caching=True)

    assert needed(use).needed
    assert needed(replace(use, hybrid=False)).because == "no layer of the model keeps a state"
    assert needed(replace(use, prefix_caching=False)).because == "prefix caching is off"
