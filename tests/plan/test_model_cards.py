"""The tokens and the concurrency that model cards print follow from the config and the printed size of the KV cache."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from vpatch.plan import GIB, Model
from vpatch.plan.defaults import gpu, preset
from vpatch.plan.deployment import Deployment
from vpatch.plan.kv_cache import Capacity, Layout, capacity, layout
from vpatch.plan.models import load

from tests.plan.examples import AT_32K, FP8_AT_262K, SHARES, TURBOQUANT_AT_262K, Printed


@cache
def planned(name: str) -> tuple[Model, Deployment, Layout]:
    """Return a preset's model and deployment, and the layout of its KV cache."""
    one = preset(name)
    model = load(one.model, one.revision)
    deployment = one.deployment(gpu(one.gpu), {})
    return model, deployment, layout(model, deployment)


def computed(row: Printed, more: int = 0) -> Capacity:
    """Return what a row's KV cache holds with `more` bytes than printed."""
    _, deployment, laid = planned(row.preset)
    return capacity(laid, deployment, [int(row.kv_cache * GIB) + more])


@pytest.mark.parametrize("row", AT_32K, ids=lambda row: row.preset)
def test_32k_is_exact(row: Printed) -> None:
    found = computed(row)

    assert (found.slots, round(found.concurrency, 2)) == (row.tokens, row.concurrency)


def test_fp8_at_262k_is_exact() -> None:
    found = computed(FP8_AT_262K)

    assert (found.tokens, round(found.concurrency, 2)) == (FP8_AT_262K.tokens, FP8_AT_262K.concurrency)


def test_turboquant_at_262k_is_within_half_a_percent() -> None:
    """5.48 GiB are 274.15 blocks; the card's tokens are those of 273, which are 5.457 GiB."""
    found = computed(TURBOQUANT_AT_262K)

    assert found.tokens == pytest.approx(TURBOQUANT_AT_262K.tokens, rel=0.005)
    assert found.concurrency == pytest.approx(TURBOQUANT_AT_262K.concurrency, rel=0.005)
    block = planned(TURBOQUANT_AT_262K.preset)[2].bytes_per_block[0]
    assert computed(TURBOQUANT_AT_262K, -block).tokens == TURBOQUANT_AT_262K.tokens


@pytest.mark.parametrize("row", [*AT_32K, FP8_AT_262K, TURBOQUANT_AT_262K], ids=lambda row: row.preset)
@pytest.mark.parametrize("step", [-1, 1])
def test_a_block_more_or_less_moves_the_result(row: Printed, step: int) -> None:
    _, deployment, laid = planned(row.preset)
    before, after = computed(row), computed(row, step * laid.bytes_per_block[0])

    assert after.blocks == before.blocks + step
    assert after.concurrency == (before.blocks + step) / before.blocks_per_request
    assert after.tokens == int(after.concurrency * deployment.max_model_len)
    assert after.slots == after.blocks // len(laid.groups) * laid.block_size


@pytest.mark.parametrize("row", AT_32K, ids=lambda row: row.preset)
def test_a_byte_less_than_a_block_more_moves_nothing(row: Printed) -> None:
    _, _, laid = planned(row.preset)
    size = laid.bytes_per_block[0]
    whole = -(int(row.kv_cache * GIB) % size)

    assert computed(row, whole) == computed(row, whole + size - 1) == computed(row)


def shared(taken: float) -> dict[str, float]:
    """Return the relative error of the card's row for each share, if so many GiB come before the cache."""
    found = {}
    for name, (share, context) in SHARES.items():
        _, deployment, laid = planned(name)
        budget = int(deployment.gpu.memory * share - taken * GIB)
        found[name] = capacity(laid, deployment, [budget]).slots / context - 1
    return found


def test_the_table_of_shares_is_within_five_percent() -> None:
    """The card does not print what comes before the KV cache: one such number for all four rows explains them.

    The rows are what 0.18 prints as the size of its KV cache: blocks // groups * block size, in steps of 1,056 tokens.
    """
    explained = [taken / 1000 for taken in range(26_000, 28_000) if within(shared(taken / 1000))]

    assert explained
    # Weights of about 24.6 GiB, and 2.2 for what runs: as the rows of the other card.
    assert 26.7 < min(explained) <= max(explained) < 26.9


def within(errors: dict[str, float]) -> bool:
    return all(abs(error) <= 0.05 for error in errors.values())


def test_a_share_moves_the_table() -> None:
    """Another share gives another row, and with a gibibyte more before the cache no row matches."""
    assert not within(shared(27.8))
    name = "qwen3.5-35b-5090-headless"
    _, deployment, laid = planned(name)
    sizes = [
        capacity(laid, replace(deployment), [int(deployment.gpu.memory * share - 26.79 * GIB)]).slots
        for share in (0.90, 0.91, 0.92, 0.93)
    ]
    assert sizes == sorted(set(sizes))
