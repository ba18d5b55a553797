"""turboquant-workspace on real releases: its states, and what drifts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.testing import Case, State, check
from vpatch.tree.locate import locate

from tests.engines import engine_of
from tests.overlays.tables import BROKEN, WITHOUT_TURBOQUANT, drifted
from tests.releases import cases

ATTENTION = "vllm/v1/attention/backends/turboquant_attn.py"

MISNAMED = "nearest: 'TurboQuantAttentionImpl._continue_prefill'"
K_BUF = '`k_buf = getattr(layer, "_tq_k_dequant_buf", None)`'
THRESHOLD = "self._init_reorder_batch_threshold"
THRESHOLD_SET = f"{THRESHOLD}(1, supports_spec_as_decode=False)\n"
MANAGER = "current_workspace_manager().get_simultaneous"
RESERVES = "        self._reserve_workspace()\n"
RESERVES_ELSE = f"        {MANAGER}(((1 << 30,), torch.uint8))\n"
DEFINED = "'_reserve_workspace' is defined already"

CASES = (
    *WITHOUT_TURBOQUANT,
    BROKEN,
    *(
        Case(release, State.PENDING, says="matches the 0.20 layout; 6 changes")
        for release in ("0.20.0", "0.20.1", "0.20.2")
    ),
    # Upstream has one of the 10 changes, the import.
    *(
        Case(release, State.PENDING, says="matches the 0.21 layout; 9 of 10 changes")
        for release in ("0.21.0", "0.22.0", "0.22.1", "0.23.0")
    ),
    *(
        Case(release, State.MERGED, says="merged upstream (vllm-project/vllm#44053): ")
        for release in (
            *("0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0"),
            *("0.32.0", "0.33.0"),
        )
    ),
    *drifted(
        "0.20.2",
        ATTENTION,
        ("k_buf.shape[2] < alloc_len", "k_buf.shape[2] != alloc_len", f"{K_BUF} is not there"),
        ("def _continuation_prefill(", "def _continue_prefill(", MISNAMED),
        ("import math\n", "import math (\n", "not valid Python"),
        ("import math\n", "import math\nfrom scipy import scratch\n", "'scratch' is already bound"),
        # A reservation in another form.
        (THRESHOLD_SET, THRESHOLD_SET + RESERVES_ELSE, f"TurboQuantMetadataBuilder has `{MANAGER}(...)`"),
    ),
    *drifted(
        "0.21.0",
        ATTENTION,
        ("((B, Hq, S, D + 1), torch.float32),", "((B, Hq, S, D + 2), torch.float32),", f"`{MANAGER}("),
        (f"        {THRESHOLD}(1", "        self._init_threshold(1", f"`{THRESHOLD}(...)` is not there"),
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


@pytest.mark.parametrize("case", cases(CASES))
def test_case(case: Case, slim: Callable[[str], Path], tmp_path: Path) -> None:
    check(case, "turboquant-workspace", tree=slim(case.release), scratch=tmp_path)


def test_turboquant_hybrid_changes_the_same_file(slim: Callable[[str], Path]) -> None:
    """`test_turboquant_speculation.py` tests that every order gives the same bytes."""
    read = locate(slim("0.20.2")).read

    def made(*overlays: str) -> Mapping[str, bytes]:
        return engine_of(select(discover(), overlays)).plan(read).files

    hybrid, workspace = made("turboquant-hybrid"), made("turboquant-workspace")
    both = made("turboquant-hybrid", "turboquant-workspace")
    assert hybrid.keys() & workspace.keys() == {ATTENTION}
    assert both == {**hybrid, **workspace, ATTENTION: both[ATTENTION]}
