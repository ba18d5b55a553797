"""Captures with custom-ar-expandable, by each release's own groups and all-reduce; the allocator is simulated."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, compared, each
from tests.validation.cpu.probe_custom_ar_expandable import CASES

pytestmark = pytest.mark.deep
release = each(sampled(("0.20.2", "0.24.0", "0.33.0", "0.31.0"), 2))

ON = [name for name in CASES if name == "alone" or (name.startswith("on") and "disabled" not in name)]


@pytest.fixture(scope="module")
def seen(release: str) -> Comparison:
    return compared("probe_custom_ar_expandable", release, ("custom-ar-expandable",), ready="bare")


def fields(conf: str) -> list[str]:
    return sorted(filter(None, conf.replace(" ", "").split(",")))


@pytest.mark.parametrize("name", ON)
def test_expandable_segments_are_off_while_capturing_and_on_behind(seen: Comparison, name: str) -> None:
    conf, how = CASES[name]
    happened = ["captured", *["registered"] * how.get("groups", 1)]
    without = fields(conf.replace("True", "False"))
    events, behind = seen.patched[name]

    assert [event for event, _ in events] == [event for event, _ in seen.stock[name][0]] == happened
    assert {at for _, at in seen.stock[name][0]} == {conf}
    # Of several groups, the outermost one turns them off and on.
    assert [fields(at) for _, at in events] == [without] * len(events)
    assert fields(behind) == fields(conf)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ON])
def test_nothing_changes_without_them_or_without_the_all_reduce(seen: Comparison, name: str) -> None:
    found: Any = seen.patched[name]

    assert found == seen.stock[name]
    assert found[1] == CASES[name][0]
