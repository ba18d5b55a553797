"""Renames and overrides of what overlays change are refused or patched correctly. docs/mutants.md counts many."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.overlays.hostile import Result, run_release
from tests.tiers import sampled

pytestmark = [pytest.mark.no_cover, pytest.mark.deep]  # tests of the engine run the same code


def check_results(results: list[Result], count: int) -> None:
    """Assert that no mutant went wrong, and that both outcomes are well represented."""
    assert [f"{r.kind}, {r.what}: {r.wrong}" for r in results if r.wrong] == []

    refused = Counter(result.refused for result in results)
    assert len(results) >= 0.9 * count
    assert min(refused.values()) >= len(results) / 4
    assert len({result.kind for result in results}) >= 18


@pytest.mark.parametrize("version", sampled(["0.20.2", "0.24.0", "0.33.0"], 3))
def test_hostile_mutants(version: str) -> None:
    check_results(run_release(version, 80, seed=2)[0], 80)
