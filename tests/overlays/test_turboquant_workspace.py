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
CHUNKED = "            scheduler_config.enable_chunked_prefill\n            and scheduler_config"
HEADS = "        num_heads = model_config.get_num_attention_heads(parallel_config)\n"
CACHED = f"{MANAGER}(\n            (cache_buf_shape"

CASES = (
    *WITHOUT_TURBOQUANT,
    *on(">=0.20,<0.21", State.PENDING, "matches the 0.20 layout; 6 changes"),
    # Upstream has one of the 10 changes, the import.
    *on(">=0.21,<0.24", State.PENDING, "matches the 0.21 layout; 9 of 10 changes"),
    # Of it, upstream has the reservation with chunked prefill (#44053).
    *on(">=0.24", State.PENDING, "matches the 0.24 layout; 6 changes"),
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
        (RESERVES, "", "TurboQuantMetadataBuilder.__init__ has no `self._reserve_workspace()`"),
        (CACHED, CACHED.replace(MANAGER, "print"), f"_reserve_workspace has no `{MANAGER}(...)`"),
        (f"k_buf, v_buf = {MANAGER}(", "k_buf, v_buf = self._buffers(", f"`{MANAGER}` is not there"),
        # A reservation without chunked prefill in another form.
        (CHUNKED, CHUNKED.replace("and", "or"), "is not there"),
        (HEADS, HEADS.replace("get_num", "get_total_num"), "is not there"),
    ),
)

test_case = table("turboquant-workspace", CASES)
