"""hybrid-zero-drafts on real releases: its states, and what drifts."""

from __future__ import annotations

from vpatch.testing import State

from tests.overlays.tables import drifted, on, table

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
BACKEND = "vllm/v1/attention/backends/gdn_attn.py"
STATES = "vllm/v1/worker/gpu/model_states/mamba_hybrid.py"
KIMI_K3 = "vllm/models/kimi_k3/nvidia/kda_metadata.py"

BY_ROWS = "num_decode_draft_tokens_cpu[spec_sequence_masks_cpu].sum().item()"
NONE_YET = "or num_decode_draft_tokens_cpu[num_decode_draft_tokens_cpu >= 0]"
MARKED = "(num_decode_draft_tokens < 0) & zero_draft_decode_mask"
WHERE = "is_decode, num_draft_tokens_per_req, -1"

CASES = (
    *on(">=0.18,<0.21", State.PENDING, "builder: matches the 0.18 layout"),
    *on(">=0.21,<0.32", State.PENDING, "v2: matches the 0.21 layout"),
    *on(">=0.32", State.MERGED),
    *drifted("0.28.0", BACKEND, (NONE_YET, NONE_YET.replace(">= 0", "> 0"), "is not there")),
    *(
        case
        for file in (BACKEND, KIMI_K3)
        for case in drifted("0.31.0", file, (BY_ROWS, BY_ROWS.replace("sum()", "max()"), "is not there"))
    ),
    # Half of upstream's change is not merged.
    *drifted("0.33.0", RUNNER, (MARKED, "zero_draft_decode_mask", "is not there")),
    *drifted("0.33.0", STATES, (WHERE, "is_decode, num_draft_tokens_per_req, 0", "has no `np.where(spec_decode_mask")),
)

test_case = table("hybrid-zero-drafts", CASES)
