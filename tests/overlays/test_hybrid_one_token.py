"""hybrid-one-token on real releases: its states, and what drifts."""

from __future__ import annotations

from vpatch.testing import State

from tests.overlays.tables import drifted, on, table

BACKEND = "vllm/v1/attention/backends/gdn_attn.py"
SCHEDULER = "vllm/v1/core/sched/scheduler.py"

SPLIT = "split_decodes_and_prefills(m, decode_threshold=1)"
BY_STATE = "split_decodes_and_prefills(m, decode_threshold=1, treat_short_extends_as_decodes=False)"
FIRST_CHUNKS = "m.replace(is_prefilling=no_prior_state),"
BEGINS = "and num_new_tokens == 1"

PADDING = "padding: matches the 0.25 layout; 1 change to make"

CASES = (
    *on("<0.19", State.PENDING, "matches the 0.18 layout; 4 changes"),
    *on(">=0.19,<0.25", State.PENDING, "matches the 0.19 layout; 3 changes"),
    *on(">=0.25,<0.31", State.PENDING, f"state: matches the 0.19 layout; 3 changes to make; {PADDING}"),
    *on(">=0.31", State.PENDING, "matches the 0.25 layout; 1 change"),
    *drifted("0.20.2", BACKEND, (SPLIT, BY_STATE, "treat_short_extends_as_decodes=False")),
    # Half of upstream's change is not merged.
    *drifted("0.33.0", BACKEND, (FIRST_CHUNKS, "m,", "split_decodes_and_prefills")),
    *drifted(
        "0.33.0",
        SCHEDULER,
        ("pad_spec_decode = True", "pad_spec_decode = 1", "has no `pad_spec_decode = True`"),
        (BEGINS, BEGINS.replace("==", "<="), "num_new_tokens == 1"),
    ),
)

test_case = table("hybrid-one-token", CASES)
