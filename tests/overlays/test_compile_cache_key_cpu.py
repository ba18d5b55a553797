"""Folders of compiled models with compile-cache-key, by each release's own `__call__`, in two processes."""

from __future__ import annotations

import pytest

from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, compared, each, ran
from tests.validation.cpu.probe_compile_cache_key import DIFFERENT, SAME
from tests.validation.cpu.trees import patched_tree

pytestmark = pytest.mark.deep
release = each(sampled(("0.20.2", "0.33.0"), 1))
IDS = ("compile-cache-key",)


@pytest.fixture(scope="module")
def seen(release: str) -> Comparison:
    return compared("probe_compile_cache_key", release, IDS, ready="bare")


def test_stock_has_one_folder_for_all(seen: Comparison) -> None:
    assert len({*seen.stock.values()}) == 1


def test_patched_has_one_for_each_that_differs(seen: Comparison) -> None:
    folders = {name: seen.patched[name] for name in DIFFERENT}
    assert len({*folders.values(), seen.patched["first"]}) == len(folders) + 1
    assert {seen.patched[name] for name in SAME} == {seen.patched["first"]}


def test_another_process_finds_the_same(seen: Comparison, release: str) -> None:
    assert ran("probe_compile_cache_key", release, patched_tree(release, *IDS), ready="bare") == seen.patched
