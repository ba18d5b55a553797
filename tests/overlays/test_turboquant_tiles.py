"""turboquant-tiles on real releases: its states, and what drifts."""

from __future__ import annotations

from vpatch.testing import State

from tests.overlays.tables import WITHOUT_TURBOQUANT, drifted, on, table

ATTENTION = "vllm/v1/attention/backends/turboquant_attn.py"
KERNELS = "vllm/v1/attention/ops/triton_turboquant_decode.py"
MERGE = "vllm/v1/attention/ops/merge_attn_states.py"

SHAPE = "        q_len, Hq, D = query.shape\n"
MERGES = "        merge_attn_states(query, query, Pi, query, Pi)\n"
SPLITS = "        self.max_num_kv_splits = ("
MOST_SPLITS = "self.max_num_kv_splits = vllm_config.attention_config.tq_max_kv_splits_for_cuda_graph"
RESERVES = "        if not reserve_continuation_prefill:"
LSE = "    output_lse: torch.Tensor | None = None,\n"
V_OUT = "    V_out_ptr,  # [B, Hk, max_seq, D] float16\n"
HAS = "TurboQuantAttentionImpl._continuation_prefill has `merge_attn_states(...)`"

CASES = (
    *WITHOUT_TURBOQUANT,
    *on(">=0.20,<0.24", State.PENDING, "5 changes to make"),
    *on(">=0.24", State.PENDING, "1 change to make"),
    *drifted(
        "0.26.0",
        ATTENTION,
        (SPLITS, SPLITS.replace("max_num_kv_splits", "num_kv_splits"), "`self.max_num_kv_splits` is not there; line"),
        # Upstream's reservation would remain, so this must not pass as not applicable.
        (RESERVES, "        if reserves_nothing:", "`if not reserve_continuation_prefill: ...` is not there; nearest"),
    ),
    # The companion module passes these arguments by name.
    *drifted(
        "0.26.0",
        MERGE,
        (LSE, "", "does not take what turboquant_tiles.py passes: got an unexpected keyword argument 'output_lse'"),
    ),
    *drifted(
        "0.33.0",
        KERNELS,
        (
            V_OUT,
            "    Values_ptr,\n",
            "does not take what turboquant_tiles.py passes: missing a required argument: 'Values_ptr'",
        ),
    ),
    # If upstream does the same one day, the overlay needs a review.
    *drifted("0.33.0", ATTENTION, (SHAPE, SHAPE + MERGES, f"it seems merged upstream ({HAS})")),
)

test_case = table("turboquant-tiles", CASES)
