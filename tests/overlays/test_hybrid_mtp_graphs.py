"""hybrid-mtp-graphs on real releases: its states, what drifts, and the code that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.testing import State

from tests.overlays.tables import check_result, drifted, on, table
from tests.releases import FIRST, tiered

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
V2_RUNNER = "vllm/v1/worker/gpu/model_runner.py"

V1 = "v1: matches the 0.18 layout; 3 changes to make"
V2 = "v2: matches the 0.21 layout; 3 changes to make"

ENCODERS = "num_encoder_reqs=len(scheduler_output.scheduled_encoder_inputs),\n"
FORCED = "                force_uniform_decode=forced_uniform_decode(self, scheduler_output),\n"
CLOSES = '            )\n\n            logger.debug(\n                "Running batch with cudagraph_mode'
BY_47123 = f"{ENCODERS}                force_uniform_decode=False if has_context else None,\n"
FILLS = "self.num_decode_draft_tokens.np[:num_reqs] = num_decode_draft_tokens"
FORCES = "            force_uniform_decode=force_uniform_decode,\n        )\n        # Encoder-decoder"
SHAPE = "        uniform_tok_count = get_uniform_token_count(num_reqs, num_toks, max_query_len)\n"
ASKS = "num_reqs, num_toks, max_query_len, batch_state.has_prefill"

CASES = (
    *on("<0.21", State.PENDING, "matches the 0.18 layout; 3 changes"),
    *on(">=0.21,<0.28", State.PENDING, f"{V1}; {V2}"),
    *on(">=0.28", State.PENDING, "matches the 0.18 layout; 3 changes"),
    *drifted(
        "0.20.2",
        RUNNER,
        # Another fix is not stacked upon, as vllm-project/vllm#47123 proposes it.
        (ENCODERS, BY_47123, "force_uniform_decode"),
        (FILLS, f"{FILLS} + 0", "has no `self.num_decode_draft_tokens.np"),
        # As vllm-project/vllm#53059.
        (FORCES, FORCES.replace("=force_uniform_decode", "=force_uniform_decode or None"), "has no `self._is_uniform"),
    ),
    *drifted("0.26.0", V2_RUNNER, (SHAPE, SHAPE.replace("max_query_len)", "1)"), "get_uniform_token_count")),
    # Half of upstream's change is not merged.
    *drifted("0.28.0", V2_RUNNER, (ASKS, ASKS.replace("batch_state.has_prefill", "False"), "get_uniform_token_count")),
)

test_case = table("hybrid-mtp-graphs", CASES)


@pytest.mark.parametrize("release", tiered(FIRST))
def test_only_the_call_changes(release: str, slim: Callable[[str], Path], tmp_path: Path) -> None:
    tree = slim(release)
    imports = "from vllm._vpatch.hybrid_mtp_graphs import forced_uniform_decode\n\nif TYPE_CHECKING:\n"
    changes = (CLOSES, FORCED + CLOSES), ("\nif TYPE_CHECKING:\n", imports)

    check_result("hybrid-mtp-graphs", release, tree, tmp_path, RUNNER, *changes)
