"""UltraQuant's attention, which inherits from TurboQuant's, with all overlays of TurboQuant in the real vLLM.

On 0.33.0, whose code 0.32.0 has, too, the tests compare the tree as published with the patched one, on the CPU.
"""

from __future__ import annotations

import pytest

from tests.validation.cpu.attending import Row
from tests.validation.cpu.comparison import Comparison, beside, each
from tests.validation.cpu.probe_mtp import STEPS

OVERLAYS = ("turboquant-decode", "turboquant-mtp", "turboquant-tiles")

pytestmark = pytest.mark.deep
release = each(("0.33.0",))
seen = beside("probe_ultraquant", *OVERLAYS, models=True)


def attends_to(row: Row, *, believed: bool) -> list[int]:
    """Return how many tokens each token of a request attends to in the cache; [] for a new prompt, which reads none."""
    behind = row.cached + (row.rejected if believed else 0)
    return [behind + 1 + at for at in range(row.new)] if row.cached else []


def test_the_forward_pass_that_sizes_the_cache_is_that_of_stock(seen: Comparison) -> None:
    assert seen.patched["profiled"] == seen.stock["profiled"] == {"zeros": True, "workspace": 0}


def test_it_goes_on_with_prompts_in_the_workspace_that_stock_reserves(seen: Comparison) -> None:
    assert seen.patched["reserved"] == seen.stock["reserved"]
    assert seen.patched["turboquant reserved"]["bytes"] < seen.stock["turboquant reserved"]["bytes"]


def test_the_kernels_of_decode_pass_over_it(seen: Comparison) -> None:
    assert seen.patched["warmed"] == {"off": None, "log": []}
    assert seen.patched["drafted"]["threshold"] == seen.stock["drafted"]["threshold"] == 1


def test_no_graph_of_whole_steps_verifies_drafts(seen: Comparison) -> None:
    support = [found["drafted"]["graphs"] for found in seen]

    assert support == ["UNIFORM_BATCH", "UNIFORM_SINGLE_TOKEN_DECODE"]


@pytest.mark.parametrize("name", STEPS)
def test_each_token_attends_to_its_own_context(seen: Comparison, name: str) -> None:
    rows = STEPS[name]
    decodes = [row for row in rows if row.cached and row.new == 1]  # one call for all of them
    others = [row for row in rows if row not in decodes]
    first = [[length for row in decodes for length in attends_to(row, believed=False)]] if decodes else []

    assert seen.patched[name] == {"lengths": [*first, *(attends_to(row, believed=False) for row in others)]}
    beside_new = any(not row.cached for row in rows)  # where stock leaves out the cache
    stale = [*first, *([] if beside_new else attends_to(row, believed=True) for row in others)]
    assert seen.stock[name] == {"lengths": stale}
