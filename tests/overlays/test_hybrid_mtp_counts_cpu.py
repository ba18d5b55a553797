"""Whose accepted count a request reads, on vLLM's own code, whenever the copy of the counts lands on the CPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from packaging.version import Version

from tests.overlays.test_hybrid_mtp_counts import RUNNER
from tests.paths import link
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


# As of noonghunna/club-3090#1061: behind the other wait, and the counts are still mapped.
OTHER_WAIT = "        self.prepare_inputs_event.synchronize()\n"
ADDED = (
    "        if self.num_accepted_tokens_event is not None:\n            self.num_accepted_tokens_event.synchronize()\n"
)


@pytest.mark.parametrize("of", ["0.23.0", "0.33.0"])
def test_a_wait_that_another_patch_put_in(of: str, tmp_path: Path) -> None:
    """The wait alone is wrong whenever two rows trade places; with the overlay, counts are right."""
    tree = shutil.copytree(tree_of(of), tmp_path / of, copy_function=link)
    text = (runner := tree / RUNNER).read_text()
    assert text.count(OTHER_WAIT) == 1
    runner.unlink()
    runner.write_text(text.replace(OTHER_WAIT, OTHER_WAIT + ADDED))

    alone, both = (
        ran("probe_hybrid_mtp_counts", of, one, "4", str(LENGTH), ready="bare")["align"]
        for one in (tree, patched_tree(of, OVERLAY, pristine=tree))
    )

    assert alone["moved before a wait"] == both["moved before a wait"] == both["wrong"] == 0
    assert alone["waits"] == both["waits"] > 0
    assert alone["wrong"] > 0
