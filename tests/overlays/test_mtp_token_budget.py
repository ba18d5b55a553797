"""mtp-token-budget on real releases: its states, what drifts, and the code that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vpatch.testing import Case, State

from tests.overlays.tables import check_result, drifted, on, table

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
BEFORE = """        is_encoder_decoder = self.model_config.is_encoder_decoder

        # _prepare_inputs may reorder the batch, so we must gather multi
"""
CLAMP = """        if self.speculative_config is not None:
            self.input_ids.gpu[:num_input_tokens].clamp_(min=0)
"""

CASES = (
    *on("<0.25", State.PENDING, "matches the 0.18 layout; 1 change"),
    *on(">=0.25", State.MERGED, "#37159"),
    # As upstream has it, without the overlay's marks.
    Case("0.20.2", State.MERGED, replace={RUNNER: (BEFORE, BEFORE.replace("\n\n", f"\n{CLAMP}\n"))}, says="#37159"),
    *drifted(
        "0.20.2",
        RUNNER,
        (BEFORE, BEFORE.replace("is_encoder_decoder", "encodes", 1), "is not there"),
    ),
)

test_case = table("mtp-token-budget", CASES)


def test_only_the_clamp_is_added(slim: Callable[[str], Path], tmp_path: Path) -> None:
    change = (BEFORE, BEFORE.replace("\n\n", f"\n{CLAMP}\n"))

    check_result("mtp-token-budget", "0.20.2", slim("0.20.2"), tmp_path, RUNNER, change)
