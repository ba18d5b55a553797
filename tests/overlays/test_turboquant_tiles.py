"""turboquant-tiles on real releases: its states, what drifts, and its combination with turboquant-workspace."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.testing import Case, State, check
from vpatch.tree.locate import locate

from tests.engines import engine_of
from tests.overlays.tables import BROKEN, WITHOUT_TURBOQUANT, drifted
from tests.releases import cases, fact, pending
from tests.tiers import deep

ATTENTION = "vllm/v1/attention/backends/turboquant_attn.py"
KERNELS = "vllm/v1/attention/ops/triton_turboquant_decode.py"
MERGE = "vllm/v1/attention/ops/merge_attn_states.py"

SHAPE, UNPACKS = (f"        q_len, Hq, D = {shape}\n" for shape in ("query.shape", "tuple(query.shape)"))
MERGES = "        merge_attn_states(query, query, Pi, query, Pi)\n"
IDLE = "        if attn_metadata is None:\n            return output.fill_(0)\n"
SPLITS = "        self.max_num_kv_splits = ("
MOST_SPLITS = "self.max_num_kv_splits = vllm_config.attention_config.tq_max_kv_splits_for_cuda_graph"
RESERVES = "        reserve_continuation_prefill = ("
LSE = "    output_lse: torch.Tensor | None = None,\n"
V_OUT = "    V_out_ptr,  # [B, Hk, max_seq, D] float16\n"
HAS = "TurboQuantAttentionImpl._continuation_prefill has `merge_attn_states(...)`"

CASES = (
    *WITHOUT_TURBOQUANT,
    BROKEN,
    *(
        Case(release, State.PENDING, says=f"{count} change{'s' * (count > 1)} to make")
        for release in pending("turboquant-tiles")
        for count in (1 if fact("turboquant-workspace", release) == "merged" else 5,)
    ),
    *drifted("0.20.2", ATTENTION, (SHAPE, UNPACKS, "`q_len, Hq, D = query.shape` is not there")),
    *drifted(
        "0.21.0",
        ATTENTION,
        (IDLE, IDLE.replace("attn_metadata is None", "not attn_metadata"), "`if attn_metadata is None"),
    ),
    *drifted(
        "0.26.0",
        ATTENTION,
        (SPLITS, SPLITS.replace("max_num_kv_splits", "num_kv_splits"), f"`{MOST_SPLITS}` is not there"),
        # Upstream's reservation would remain, so this must not pass as not applicable.
        (RESERVES, "        reserve_all = (", f"`{RESERVES.strip()}` is not there"),
    ),
    # The companion module passes these arguments by name.
    *drifted("0.26.0", MERGE, (LSE, "", "merge_attn_states does not take output_lse")),
    *drifted("0.33.0", KERNELS, (V_OUT, "    Values_ptr,\n", "_tq_full_dequant_kv does not take V_out_ptr")),
    # If upstream does the same one day, the overlay needs a review.
    *drifted("0.33.0", ATTENTION, (SHAPE, SHAPE + MERGES, f"it seems merged upstream ({HAS})")),
)


@pytest.mark.parametrize("case", cases(CASES))
def test_case(case: Case, slim: Callable[[str], Path], tmp_path: Path) -> None:
    check(case, "turboquant-tiles", tree=slim(case.release), scratch=tmp_path)


def test_it_is_opt_in() -> None:
    assert "turboquant-tiles" not in {item.id for item in select(discover())}


@pytest.mark.parametrize("release", [deep("0.20.2"), "0.21.0"])
def test_with_turboquant_workspace_in_any_order(slim: Callable[[str], Path], release: str) -> None:
    """Both overlays change the same functions; the result must not depend on which was applied first."""
    site, both = locate(slim(release)), ("turboquant-tiles", "turboquant-workspace")
    made = []
    for order in (*permutations(both), both):
        changes: dict[str, bytes] = {}

        def read(file: str, changes: dict[str, bytes] = changes) -> bytes | None:
            return changes.get(file) or site.read(file)

        for step in [order] if order is both else [(one,) for one in order]:
            changeset = engine_of(select(discover(), step)).plan(read)
            assert not changeset.problems
            changes |= changeset.files
        made.append(changes)

    assert made[0] == made[1] == made[2]
    names = ("tiles", "workspace", *(("speculation",) if release != "0.20.2" else ()))
    assert made[0].keys() == {ATTENTION, *(f"vllm/_vpatch/turboquant_{name}.py" for name in names)}
