"""structured-mtp on real releases: its states, what drifts, and the code that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.testing import State

from tests.overlays.tables import check_result, drifted, on, table

MANAGER = "vllm/v1/structured_output/__init__.py"
SCHEDULER = "vllm/v1/core/sched/scheduler.py"

WINDOW = "            all_token_ids, itertools.islice(all_token_ids, start, None)\n"
PASSES = "            if new_token_ids and self.structured_output_manager.should_advance(request):\n"
ONE_KIND = """            if (
                self.vllm_config.speculative_config is not None
                and structured_req.structured_output_key[0]
                == StructuredOutputOptions.STRUCTURAL_TAG
            ):
"""
TOKENS = "                req_tokens = scheduled_spec_decode_tokens.get(req_id, ())\n"

CASES = (
    *on("<0.20.1", State.PENDING, "matches the 0.18 layout; 11 changes"),
    *on(">=0.20.1,<0.25", State.PENDING, "matches the 0.20 layout; 11 changes"),
    *on(">=0.25,<0.27", State.PENDING, "matches the 0.25 layout; 3 changes"),
    *on(">=0.27", State.MERGED, "#44993"),
    *drifted(
        "0.20.2",
        MANAGER,
        # Parts of other fixes.
        (WINDOW, WINDOW.replace("start, None", "start + 1, None"), "is not there"),
        (TOKENS, TOKENS.replace("()", "[]"), "is not there"),
    ),
    *drifted("0.26.0", MANAGER, (ONE_KIND, ONE_KIND.replace("is not None", "is None"), "is not there")),
    *drifted("0.26.0", SCHEDULER, (PASSES, PASSES.replace("(request)", "(request, [])"), "is not there")),
    # Of 0.33's method, half alone.
    *drifted("0.33.0", MANAGER, ("spec_tokens_committed=True\n        )\n", "True\n        )\n", "is not there")),
)

test_case = table("structured-mtp", CASES)


@pytest.mark.deep
def test_only_the_call_changes_in_the_scheduler(slim: Callable[[str], Path], tmp_path: Path) -> None:
    change = (PASSES, PASSES.replace("(request)", "(request, new_token_ids=new_token_ids)"))

    check_result("structured-mtp", "0.26.0", slim("0.26.0"), tmp_path, SCHEDULER, change)
