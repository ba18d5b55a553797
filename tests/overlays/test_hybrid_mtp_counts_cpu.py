"""Whose accepted count a request reads, on vLLM's own code, whenever the copy of the counts lands on the CPU."""

from __future__ import annotations

import pytest
from packaging.version import Version

from tests.releases import fact, tree_of
from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, each, ran
from tests.validation.cpu.probe_hybrid_mtp_counts import MODES
from tests.validation.cpu.trees import patched_tree

OVERLAY = "hybrid-mtp-counts"
# Each form of the code. test_probes.py runs the overlay's probe, a part of this, on every release from 0.20 on.
RELEASES = sampled(("0.20.2", "0.18.0", "0.19.1", "0.22.1", "0.33.0", "0.24.0", "0.28.0"), 4)
SEQUENCES, LENGTH = 8, 15

pytestmark = pytest.mark.deep
release = each(RELEASES)


@pytest.fixture(scope="module")
def seen(release: str) -> Comparison:
    trees = [tree_of(release)]
    if fact(OVERLAY, release) == "pending":
        trees.append(patched_tree(release, OVERLAY))
    found = [ran("probe_hybrid_mtp_counts", release, tree, str(SEQUENCES), str(LENGTH), ready="bare") for tree in trees]
    return Comparison(found[0], found[-1])


def since(release: str, first: str) -> bool:
    return Version(release) >= Version(first)


def waits(release: str, mode: str) -> bool:
    """Return whether the patched runner waits for the copy: from 0.24 on only if it reads the counts on the CPU."""
    return mode != "none" or not since(release, "0.24")


@pytest.mark.parametrize("mode", MODES)
def test_random_sequences_of_steps(seen: Comparison, release: str, mode: str) -> None:
    """Requests end, arrive, are prefilled in parts, are left out and return; copies land at any moment.

    Without asynchronous scheduling the copy lands early; 0.18 waits for the tokens of the last step, and is right.
    """
    stock, patched = (found[mode] for found in seen)

    assert stock["total"] == patched["total"] > 300
    if MODES[mode]:
        assert bool(stock["wrong"]) is (since(release, "0.19") and waits(release, mode))
    if since(release, "0.19"):
        assert patched["wrong"] == patched["moved before a wait"] == 0
        assert bool(patched["waits"]) is waits(release, mode)
