"""hybrid-mtp-states in the real vLLM, on the CPU: what the kernels compute from a request's states.

Triton's interpreter runs the kernels of Gated DeltaNet. The probe's model of warps runs all of them, without vLLM.
"""

from __future__ import annotations

from itertools import product

import pytest

from tests.releases import SHAPES
from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, beside, each
from tests.validation.cpu.probe_states import COUNTS, DRAFTS, KERNELS, LENGTHS

pytestmark = pytest.mark.deep
release = each(sampled(SHAPES[::-1], 4))  # all of SHAPES have every version of these kernels
STEPS = [*product(KERNELS, LENGTHS)]
IN_RANGE = range(1, DRAFTS + 2)
CLOSEST = {accepted: min(max(accepted, 1), DRAFTS + 1) for accepted in COUNTS}
seen = beside("probe_states", "hybrid-mtp-states")


@pytest.mark.parametrize(("kernel", "length"), STEPS)
def test_a_number_out_of_range_reads_no_state_of_another(seen: Comparison, kernel: str, length: int) -> None:
    stock, patched = ({accepted: found[f"{kernel} {length} {accepted}"] for accepted in COUNTS} for found in seen)

    for accepted, closest in CLOSEST.items():
        assert stock[accepted]["wrong"] is (accepted != closest)
        assert patched[accepted] == stock[closest]
    assert all(found["guards"] for found in (*stock.values(), *patched.values()))
    assert len({stock[accepted]["bytes"] for accepted in IN_RANGE}) == len(IN_RANGE)
