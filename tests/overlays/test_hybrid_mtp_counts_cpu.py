"""Whose accepted count a request reads, on vLLM's own code, whenever the copy of the counts lands on the CPU."""

from __future__ import annotations

import pytest
from packaging.version import Version

from tests.releases import fact, tree_of
from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, each, ran
from tests.validation.cpu.probe_hybrid_mtp_counts import LANDINGS, MODES, MOVES
from tests.validation.cpu.trees import patched_tree

OVERLAY = "hybrid-mtp-counts"
# Each form of the code. test_probes.py runs the overlay's probe, a part of this, on every release from 0.20 on.
RELEASES = sampled(("0.18.0", "0.19.1", "0.20.2", "0.22.1", "0.24.0", "0.28.0", "0.33.0"), 3)
SEQUENCES, LENGTH = 8, 15

SWAPS = {"add and swap", "add, condense and swap", "the same name again"}
RIGHT = {"C": 4, "D": 1, "E": 1, "F": 1}
ASYNCHRONOUS = [name for name, asynchronous in MODES.items() if asynchronous]

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


def wrong_on_stock(release: str, mode: str, landing: str) -> set[str]:
    """Return the moves of rows after which a request reads a wrong count on stock."""
    if not since(release, "0.19") or (mode == "none" and since(release, "0.24")):
        return set()
    if mode == "align" and not since(release, "0.22"):
        return SWAPS  # the host writes the counts, at once
    # Without a request that goes on, the rows are not mapped: then only a copy that lands early is right.
    swaps = SWAPS if mode == "align" and landing != "late" else set()
    return swaps | ({"all end"} if landing != "early" else set())


def prompt_is_wrong_on_stock(release: str, mode: str, landing: str) -> bool:
    """Return whether a count is wrong on stock after two prompts traded rows with requests that decode."""
    if mode == "none":
        return since(release, "0.19") and not since(release, "0.24") and landing == "between"
    return since(release, "0.19") and (landing != "late" or not since(release, "0.22"))


@pytest.mark.parametrize("landing", LANDINGS)
@pytest.mark.parametrize("mode", ASYNCHRONOUS)
def test_stock_reads_foreign_counts(seen: Comparison, release: str, mode: str, landing: str) -> None:
    found = seen.stock["named"][f"{mode}, {landing}"]
    wrong = {case for case in MOVES if found[case]["read"] != found[case]["right"]}
    prompts = seen.stock["a prompt trades rows"][f"{mode}, {landing}"]

    assert wrong == wrong_on_stock(release, mode, landing)
    assert (prompts != RIGHT) is prompt_is_wrong_on_stock(release, mode, landing)


@pytest.mark.parametrize("landing", LANDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_patched_reads_each_request_its_own(seen: Comparison, release: str, mode: str, landing: str) -> None:
    """Also without asynchronous scheduling, whose copy always lands early, except that 0.18 is not patched."""
    if MODES[mode] or since(release, "0.19"):
        for case, found in seen.patched["named"][f"{mode}, {landing}"].items():
            assert found["read"] == found["right"], case
        assert seen.patched["a prompt trades rows"][f"{mode.partition(',')[0]}, {landing}"] == RIGHT


def waits(release: str, mode: str) -> bool:
    """Return whether the patched runner waits for the copy: from 0.24 on only if it reads the counts on the CPU."""
    return mode != "none" or not since(release, "0.24")


@pytest.mark.parametrize("mode", MODES)
def test_the_wait_comes_before_the_first_move_of_rows(seen: Comparison, release: str, mode: str) -> None:
    stock, patched = (
        [case["log"] for landing in LANDINGS for case in found["named"][f"{mode}, {landing}"].values()]
        for found in seen
    )

    if not since(release, "0.19"):
        assert all(log[0] == "wait" for log in stock) is MODES[mode]  # for the tokens of the last step
    elif waits(release, mode):
        assert all(log[0] == "wait" and log.count("wait") == 1 for log in patched)
        assert [sorted(log) for log in stock] == [sorted(log) for log in patched]
        assert all(log[-1] == "wait" for log in stock)
    else:
        assert stock == patched
        assert not any("wait" in log for log in patched)


@pytest.mark.parametrize("mode", MODES)
def test_random_sequences_of_steps(seen: Comparison, release: str, mode: str) -> None:
    """Requests end, arrive, are prefilled in parts, are left out and return; copies land at any moment."""
    stock, patched = (found["drawn"][mode] for found in seen)

    assert stock["total"] == patched["total"] > 300
    if mode in ASYNCHRONOUS:
        assert bool(stock["wrong"]) is (since(release, "0.19") and waits(release, mode))
    if since(release, "0.19"):
        assert patched["wrong"] == patched["moved before a wait"] == 0
        assert bool(patched["waits"]) is waits(release, mode)
