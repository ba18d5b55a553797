"""hybrid-zero-drafts on the runners' and builders' own code, in steps in which some decodes have no drafts."""

from __future__ import annotations

import pytest
from packaging.version import Version

from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, beside, each

pytestmark = pytest.mark.deep
# test_probes.py runs the overlay's probe on other releases.
release = each(sampled(("0.18.0", "0.24.0", "0.28.0", "0.31.0", "0.29.0"), 2))
seen = beside("probe_zero_drafts", "hybrid-zero-drafts")

ACCEPTED = {
    "decodes without drafts": [2, 1],
    "one beside one that verifies drafts": [2, 1],
    "one beside a prompt": [2, 0],
}
RIGHT = {
    "drafts alone": [2, 1],
    "drafts and a prompt": [2, 0],
    "a prompt's last token": [0, 0],
    "its last token beside drafts": [0, 1],
}
"""In stock, too."""


def has_v2(release: str) -> bool:
    return Version(release) >= Version("0.21")


@pytest.mark.parametrize("runner", ["V1", "V2", "V2, no list"])
def test_a_decode_without_drafts_goes_on_from_the_accepted_one(seen: Comparison, release: str, runner: str) -> None:
    if runner != "V1" and not has_v2(release):
        assert set(seen.patched[runner].values()) == {None}
        return
    assert seen.patched[runner] == ACCEPTED | RIGHT
    stock = seen.stock[runner]
    assert {name: stock[name] for name in RIGHT} == RIGHT
    assert all(stock[name][0] == 0 for name in ACCEPTED), "the state before the drafts that were accepted"


def test_nothing_else_changes(seen: Comparison) -> None:
    for what in ("no states", "no speculation"):
        assert seen.patched[what] == seen.stock[what]


def test_kimi_k3(seen: Comparison, release: str) -> None:
    there = Version(release) >= Version("0.27")
    assert seen.stock["Kimi K3"] == ([0, 0, 2, 0] if there else [None] * 4)
    assert seen.patched["Kimi K3"] == ([1, 2, 2, 0] if there else [None] * 4)
