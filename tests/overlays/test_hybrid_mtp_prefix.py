"""hybrid-mtp-prefix on real releases: its states, what drifts, and the code that it writes."""

from __future__ import annotations

from vpatch.testing import Case, State

from tests.overlays.tables import drifted, table
from tests.releases import RELEASES, fact

COORDINATOR = "vllm/v1/core/kv_cache_coordinator.py"
MANAGER = "vllm/v1/core/single_type_kv_cache_manager.py"

MARGIN = "curr_hit_length + spec.block_size, max_cache_hit_length"
FLAG = "if use_eagle:\n                    # Eagle needs"
GUARDED = FLAG.replace("use_eagle", "use_eagle and not isinstance(spec, MambaSpec)")
ON_THE_FLAG = "idx in self.eagle_attn_group_indices and idx not in eagle_verified"
FOUND = "                break  # we just need the last match - early stopping\n\n        return computed_blocks"
DROPPED = FOUND.replace("        return", "        if use_eagle:\n            computed_blocks[0].pop()\n        return")

SAYS = {"not_applicable": "this vLLM looks no block further", "pending": "0.20 layout", "merged": "#45614"}

CASES = (
    *(Case(release, State(state := fact("hybrid-mtp-prefix", release)), says=SAYS[state]) for release in RELEASES),
    *drifted(
        "0.20.2",
        COORDINATOR,
        # Half of a fix, or another one, is not stacked upon.
        (ON_THE_FLAG, f"{ON_THE_FLAG} and not isinstance(spec, MambaSpec)", "has `MambaSpec`"),
        (f"{MARGIN}\n", f"{MARGIN}, MambaSpec.limit\n", "has `MambaSpec`"),
    ),
    *drifted("0.20.2", MANAGER, (FOUND, DROPPED, "MambaManager.find_longest_cache_hit has `if use_eagle: ...`")),
    # As upstream has it, without the overlay's marks.
    Case("0.20.2", State.MERGED, replace={COORDINATOR: (FLAG, GUARDED)}, says="#45614"),
)

test_case = table("hybrid-mtp-prefix", CASES)
