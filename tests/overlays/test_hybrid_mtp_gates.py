"""hybrid-mtp-gates on real releases: its states, what drifts, and the code that it writes."""

from __future__ import annotations

from vpatch.testing import Case, State

from tests.overlays.tables import drifted, table
from tests.releases import RELEASES, fact

QWEN = "vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py"
COMMON = "vllm/model_executor/layers/mamba/gdn_linear_attn.py"

GATES = "a=a,\n                    b=b,\n                    dt_bias=self.dt_bias,\n                    q=query_spec"
ONE_SORTED = GATES.replace("a=a,", "a=a.index_select(0, spec_token_indx),")
NAMED = GATES.replace("a=a,", "a=a_spec,").replace("b=b,", "b=b_spec,")
SORTED = "mixed_qkv_non_spec = mixed_qkv.index_select(0, non_spec_token_indx)"
BY_NAME = f"{SORTED}\n                a_spec = a.index_select(0, spec_token_indx)"

SAYS = {"pending": "layout", "merged": "#51812"}

CASES = (
    *(Case(release, State(state := fact("hybrid-mtp-gates", release)), says=SAYS[state]) for release in RELEASES),
    *drifted(
        "0.21.0",
        COMMON,
        # Half of the fix is not stacked upon.
        (GATES, ONE_SORTED, "is not in the call of"),
        (GATES, NAMED, "is not in the call of"),
    ),
    *drifted("0.31.0", QWEN, ("a_spec = a.index_select(0, spec_token_indx)", "a_spec = a", "is not in the call of")),
    # As upstream has it, without the overlay's marks.
    Case("0.26.0", State.DRIFTED, replace={QWEN: (SORTED, BY_NAME)}, says="has no `if attn_metadata"),
)

test_case = table("hybrid-mtp-gates", CASES)
