"""turboquant-workspace on real releases: its states, and what drifts."""

from __future__ import annotations

from vpatch.testing import State

from tests.overlays.tables import WITHOUT_TURBOQUANT, drifted, on, table

ATTENTION = "vllm/v1/attention/backends/turboquant_attn.py"

THRESHOLD = "self._init_reorder_batch_threshold"
THRESHOLD_SET = f"{THRESHOLD}(1, supports_spec_as_decode=False)\n"
MANAGER = "current_workspace_manager().get_simultaneous"
RESERVES = "        self._reserve_workspace()\n"
RESERVES_ELSE = f"        {MANAGER}(((1 << 30,), torch.uint8))\n"
DEFINED = "'_reserve_workspace' is defined already"

CASES = (
    *WITHOUT_TURBOQUANT,
    *on(">=0.20,<0.21", State.PENDING, "matches the 0.20 layout; 6 changes"),
    # Upstream has one of the 10 changes, the import.
    *on(">=0.21,<0.24", State.PENDING, "matches the 0.21 layout; 9 of 10 changes"),
    *on(">=0.24", State.MERGED, "merged upstream (vllm-project/vllm#44053): "),
    *drifted(
        "0.20.2",
        ATTENTION,
        ("import math\n", "import math (\n", "not valid Python"),
        ("import math\n", "import math\nfrom scipy import scratch\n", "'scratch' is already bound"),
        # A reservation in another form.
        (THRESHOLD_SET, THRESHOLD_SET + RESERVES_ELSE, f"TurboQuantMetadataBuilder has `{MANAGER}(...)`"),
    ),
    *drifted(
        "0.21.0",
        ATTENTION,
        # Half of upstream's change is not merged.
        (THRESHOLD_SET, THRESHOLD_SET + RESERVES, "TurboQuantMetadataBuilder.__init__ has `self._reserve_workspace()`"),
    ),
    *drifted(
        "0.26.0",
        ATTENTION,
        (RESERVES, "", DEFINED),
        (f"{MANAGER}(\n            (cache_buf_shape", "print(\n            (cache_buf_shape", DEFINED),
        (f"k_buf, v_buf = {MANAGER}(", "k_buf, v_buf = self._buffers(", DEFINED),
    ),
)

test_case = table("turboquant-workspace", CASES)
