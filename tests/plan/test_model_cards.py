"""The tokens and the concurrency that model cards print follow from the config and the printed size of the KV cache."""

from __future__ import annotations

from functools import cache

import pytest
from vpatch.plan import GIB, Model
from vpatch.plan.defaults import preset
from vpatch.plan.deployment import Deployment
from vpatch.plan.fit import fit
from vpatch.plan.kv_cache import Capacity, Layout, capacity, layout

from tests.plan.examples import AT_32K, FP8_AT_262K, SHARES, TURBOQUANT_AT_262K, Printed, preset_deployment

ROWS = pytest.mark.parametrize("row", [*AT_32K, FP8_AT_262K, TURBOQUANT_AT_262K], ids=lambda row: row.preset)


@cache
def planned(name: str) -> tuple[Model, Deployment, Layout]:
    """Return a preset's model and deployment, and the layout of its KV cache."""
    model, deployment = preset_deployment(preset(name))
    return model, deployment, layout(model, deployment)


def computed(row: Printed, more: int = 0) -> Capacity:
    """Return what a row's KV cache holds with `more` bytes than printed."""
    _, deployment, laid = planned(row.preset)
    return capacity(laid, deployment, [int(row.kv_cache * GIB) + more])


@ROWS
def test_a_row_is_exact(row: Printed) -> None:
    """At 262K, TurboQuant's 5.48 GiB are 274.15 blocks; the card's tokens are those of 273, which are 5.457 GiB."""
    _, _, laid = planned(row.preset)
    found = computed(row, -laid.bytes_per_block[0] if row is TURBOQUANT_AT_262K else 0)

    assert row.tokens == (found.slots if row in AT_32K else found.tokens)
    assert found.concurrency == pytest.approx(row.concurrency, abs=0.006)


@ROWS
def test_the_rows_are_within_the_estimates_bounds(row: Printed) -> None:
    """The recorded weights are the card's; the rest of vLLM's share is estimated.

    Of the rows at 262K the card prints the weights of those at 32K, though TurboQuant's buffers are larger there.
    """
    model, deployment, _ = planned(row.preset)
    cache = fit(model, deployment).memory.kv_cache

    assert cache.least < row.kv_cache * GIB < cache.most
    assert abs(cache.likely / GIB - row.kv_cache) < (0.5 if row is TURBOQUANT_AT_262K else 0.2)
    assert cache.most - cache.least < 4 * GIB, "bounds so wide say nothing"


def explains(taken: float) -> bool:
    """Return whether each row is within 5 % of the card's table of shares, if so many GiB come before the cache."""
    for name, (share, context) in SHARES.items():
        _, deployment, laid = planned(name)
        budget = int(deployment.gpu.memory * share - taken * GIB)
        if abs(capacity(laid, deployment, [budget]).slots / context - 1) > 0.05:
            return False
    return True


def test_the_table_of_shares_is_within_five_percent() -> None:
    """The card does not print what comes before the KV cache: one such number for all four rows explains them.

    The rows are what 0.18 prints as the size of its KV cache: blocks // groups * block size, in steps of 1,056 tokens.
    """
    explained = [taken / 1000 for taken in range(26_600, 27_000) if explains(taken / 1000)]

    # Weights of about 24.6 GiB, and 2.2 for what runs: as the rows of the other card.
    assert 26.7 < min(explained) <= max(explained) < 26.9
