"""hybrid-mtp-counts on real releases: its states, what drifts, and the code that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.testing import Case, State

from tests.overlays.tables import check_edited, check_result, drifted, on, table
from tests.releases import tiered

RUNNER = "vllm/v1/worker/gpu_model_runner.py"

WAIT = "self.num_accepted_tokens_event.synchronize()"
EARLY = f"        if self.num_accepted_tokens_event is not None:\n            {WAIT}\n"
GATHER = f"""            {WAIT}
            # Async mode: condense() reordered indices, use prev_positions mapping
            if self.use_async_scheduling and prev_req_id_to_index:
                prev_idx = self.prev_positions.np[:num_reqs]
                new_mask = prev_idx < 0
                self.num_accepted_tokens.np[:num_reqs] = (
                    self.input_batch.num_accepted_tokens_cpu[
                        np.where(new_mask, 0, prev_idx)
                    ]
                )
                self.num_accepted_tokens.np[:num_reqs][new_mask] = 1
                self.input_batch.num_accepted_tokens_cpu[:num_reqs] = (
                    self.num_accepted_tokens.np[:num_reqs]
                )
            else:
                # Non-async mode: use values directly
                self.num_accepted_tokens.np[:num_reqs] = (
                    self.input_batch.num_accepted_tokens_cpu[:num_reqs]
                )
"""
READ = "            self.num_accepted_tokens.np[:num_reqs] = self.input_batch.num_accepted_tokens_cpu[:num_reqs]\n"
PREPARE = "    def _compute_prev_positions("
HELPER = f"    def _sync_num_accepted_tokens(self, num_reqs, prev_req_id_to_index):\n        ...\n\n{PREPARE}"
TOP = "        # Remove finished requests from the cached states.\n"
ENTRY = "        if self.prepare_inputs_event is None:\n"
INPUT_PREP = "        self.prepare_inputs_event.synchronize()\n"
BEFORE_STEP = "            # Update persistent batch states.\n"
# The wait of vllm-project/vllm#53613 and of noonghunna/club-3090#1061 alone, in the places and forms that it may have.
WAITS = (
    (INPUT_PREP, INPUT_PREP + EARLY),
    (INPUT_PREP, f"{INPUT_PREP}        {WAIT}\n"),
    (INPUT_PREP, EARLY + INPUT_PREP),
    (ENTRY, EARLY + ENTRY),
    (ENTRY, f"        {WAIT}\n{ENTRY}"),
    (TOP, EARLY + TOP),
    (BEFORE_STEP, f"            {WAIT}\n{BEFORE_STEP}"),
)
ONLY_READS = "the mapping to the rows of the last step is gone, without the wait: half of vllm-project/vllm#53919"
WITH_SNAPSHOT = "another fix, of vllm-project/vllm#51599, is there"

CASES = (
    *on("<0.19", State.NOT_APPLICABLE, "waits for the last step's tokens"),
    *on(">=0.19,<0.24", State.PENDING, "matches the 0.19 layout; 2 changes"),
    *on(">=0.24", State.PENDING, "matches the 0.24 layout; 2 changes"),
    # The wait alone makes the wrong order certain. The overlay adds what is missing, and leaves the wait in its place.
    *(
        Case(release, State.PENDING, replace={RUNNER: wait}, says="2 changes")
        for release, waits in (("0.22.1", WAITS), ("0.32.0", WAITS), ("0.33.0", WAITS[:1]))
        for wait in waits
    ),
    # The overlay is not stacked on another way to read the counts.
    *(
        case
        for release in ("0.22.1", "0.32.0")
        for case in drifted(
            release,
            RUNNER,
            (GATHER, f"            {WAIT}\n{READ}", ONLY_READS),
            (GATHER, READ, ONLY_READS),
            (PREPARE, HELPER, WITH_SNAPSHOT),
        )
    ),
    # Without its wait, 0.18 is no release that is right.
    *drifted(
        "0.18.0",
        RUNNER,
        (
            "valid_sampled_token_count = self._get_valid_sampled_token_count()",
            "valid_sampled_token_count = []",
            "no block",
        ),
    ),
)

test_case = table("hybrid-mtp-counts", CASES)


HAS_EVENT = "self.num_accepted_tokens_event is not None"
CONDITION = {
    "0.20.2": f"self.speculative_config is not None and {HAS_EVENT}",
    "0.26.0": f"""{HAS_EVENT} and not (
            self.use_async_scheduling and self.cache_config.mamba_cache_mode != "align"
        )""",
}


@pytest.mark.parametrize("release", tiered(CONDITION))
def test_only_the_wait_and_the_reading_change(release: str, slim: Callable[[str], Path], tmp_path: Path) -> None:
    wait = f"        if {CONDITION[release]}:\n            {WAIT}\n"
    changes = (ENTRY, wait + ENTRY), (GATHER, f"            {WAIT}\n{READ}")

    check_result("hybrid-mtp-counts", release, slim(release), tmp_path, RUNNER, *changes)


BY_HAND = {
    # As vllm-project/vllm#53919 proposes; the wait may also stand at the top, and remain where it was.
    "both halves": (State.MERGED, (TOP, EARLY + TOP), READ),
    "both halves, two waits": (State.MERGED, (TOP, EARLY + TOP), f"            {WAIT}\n{READ}"),
    "both halves, as here": (State.MERGED, (INPUT_PREP, INPUT_PREP + EARLY), READ),
    "the wait, moved": (State.PENDING, (TOP, EARLY + TOP), GATHER.partition("\n")[2]),
}
SAYS = {State.MERGED: "merged upstream (vllm-project/vllm#53919", State.PENDING: "2 changes to make"}


@pytest.mark.parametrize("release", tiered(CONDITION))
@pytest.mark.parametrize("name", BY_HAND)
def test_a_wait_that_was_put_in_by_hand(name: str, release: str, linked: Callable[..., Path], tmp_path: Path) -> None:
    state, wait, reading = BY_HAND[name]

    case = Case(release, state, says=SAYS[state])
    check_edited(case, "hybrid-mtp-counts", linked(release), tmp_path / "scratch", RUNNER, wait, (GATHER, reading))
