"""turboquant-workspace on real releases: its states, and what drifts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.testing import Case, State, check
from vpatch.tree.locate import locate

from tests.engines import engine_of
from tests.releases import cases

ATTENTION = "vllm/v1/attention/backends/turboquant_attn.py"
CACHE = "vllm/config/cache.py"

THRESHOLD_SET = "self._init_reorder_batch_threshold(1, supports_spec_as_decode=False)\n"
RESERVES = "        self._reserve_workspace()\n"
MANAGER = "current_workspace_manager().get_simultaneous"

CASES = (
    *(
        Case(release, State.NOT_APPLICABLE, says="lists no turboquant_*")
        for release in ("0.18.0", "0.18.1", "0.19.0", "0.19.1")
    ),
    *(Case(release, State.PENDING, says="as in 0.20; 6 of 6 changes") for release in ("0.20.0", "0.20.1", "0.20.2")),
    # Upstream has one of the 10 changes, the import.
    *(
        Case(release, State.PENDING, says="as in 0.21; 9 of 10 changes")
        for release in ("0.21.0", "0.22.0", "0.22.1", "0.23.0")
    ),
    *(
        Case(release, State.MERGED, says="upstream has it (vllm-project/vllm#44053): ")
        for release in (
            *("0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0"),
            *("0.32.0", "0.33.0"),
        )
    ),
    Case(
        "0.20.2",
        State.DRIFTED,
        replace={ATTENTION: ("k_buf.shape[2] < alloc_len", "k_buf.shape[2] != alloc_len")},
        says='`k_buf = getattr(layer, "_tq_k_dequant_buf", None)` is not there',
    ),
    Case(
        "0.20.2",
        State.DRIFTED,
        replace={ATTENTION: ("def _continuation_prefill(", "def _continue_prefill(")},
        says="nearest: 'TurboQuantAttentionImpl._continue_prefill'",
    ),
    Case("0.20.2", State.DRIFTED, replace={ATTENTION: ("import math\n", "import math (\n")}, says="not valid Python"),
    Case(
        "0.20.2",
        State.DRIFTED,
        replace={ATTENTION: ("import math\n", "import math\nfrom scipy import scratch\n")},
        says="'scratch' is already bound",
    ),
    # A reservation in another form.
    Case(
        "0.20.2",
        State.DRIFTED,
        replace={ATTENTION: (THRESHOLD_SET, f"{THRESHOLD_SET}        {MANAGER}(((1 << 30,), torch.uint8))\n")},
        says=f"TurboQuantMetadataBuilder has `{MANAGER}(...)`",
    ),
    Case(
        "0.21.0",
        State.DRIFTED,
        replace={ATTENTION: ("((B, Hq, S, D + 1), torch.float32),", "((B, Hq, S, D + 2), torch.float32),")},
        says=f"`{MANAGER}(",
    ),
    Case(
        "0.21.0",
        State.DRIFTED,
        replace={ATTENTION: ("        self._init_reorder_batch_threshold(1", "        self._init_threshold(1")},
        says="`self._init_reorder_batch_threshold(...)` is not there",
    ),
    # A broken tree is never taken for one without the feature.
    Case(
        "0.18.0",
        State.DRIFTED,
        replace={CACHE: ("CacheDType = Literal[", "CacheDTypes = Literal[")},
        says="CacheDType 0 times",
    ),
    # Half of upstream's change is not merged.
    Case(
        "0.21.0",
        State.DRIFTED,
        replace={ATTENTION: (THRESHOLD_SET, THRESHOLD_SET + RESERVES)},
        says="TurboQuantMetadataBuilder.__init__ has `self._reserve_workspace()`",
    ),
    Case(
        "0.26.0",
        State.DRIFTED,
        replace={ATTENTION: (RESERVES, "")},
        says="'_reserve_workspace' is defined already",
    ),
    Case(
        "0.26.0",
        State.DRIFTED,
        replace={ATTENTION: (f"{MANAGER}(\n            (cache_buf_shape", "print(\n            (cache_buf_shape")},
        says="'_reserve_workspace' is defined already",
    ),
    Case(
        "0.26.0",
        State.DRIFTED,
        replace={ATTENTION: (f"k_buf, v_buf = {MANAGER}(", "k_buf, v_buf = self._buffers(")},
        says="'_reserve_workspace' is defined already",
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
