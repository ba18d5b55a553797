"""hybrid-mtp-graphs and hybrid-one-token on the runners', builder's and scheduler's own code, in drawn steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from packaging.version import Version

from tests.releases import fact
from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, beside, each

pytestmark = pytest.mark.deep
# test_probes.py runs the overlays' probes on other releases.
release = each(sampled(("0.18.0", "0.20.2", "0.26.0", "0.28.0", "0.33.0", "0.23.0"), 2))
seen = beside("probe_graphs", "hybrid-mtp-graphs", "hybrid-one-token")

Step = Mapping[str, Any]


def since(release: str, first: str) -> bool:
    return Version(release) >= Version(first)


def right(rows: list[Mapping[str, int]], kind: str, release: str) -> bool:
    """Return whether all rows of a step are decodes, as long as the graph's."""
    if kind == "without":
        return all(row["tokens"] == 1 and row["computed"] > 0 for row in rows)
    begun = [row["computed"] >= row["prompt"] or since(release, "0.25") for row in rows]
    return all(row["drafts"] for row in rows) and all(begun)


@pytest.mark.parametrize("kind", ["with drafts", "without"])
def test_a_graph_of_decodes_is_for_decodes(seen: Comparison, kind: str, release: str) -> None:
    runners = ["V1", "V2"] if since(release, "0.21") else ["V1"]
    for runner in runners:
        steps = [*zip(seen.stock[kind], seen.patched[kind], strict=True)]
        wrong = [stock for stock, _ in steps if stock[runner] and not right(stock["rows"], kind, release)]
        fixed = runner == "V2" and since(release, "0.28")
        assert bool(wrong) is not fixed
        for stock, patched in steps:
            assert patched[runner] == (stock[runner] and (fixed or right(stock["rows"], kind, release)))
        assert sum(patched[runner] for _, patched in steps) > 5


@pytest.mark.parametrize("kind", ["with drafts", "without"])
@pytest.mark.parametrize("what", ["V1, no states", "V2, no states", "dummy runs", "V2, dummy run"])
def test_nothing_else_changes(seen: Comparison, kind: str, what: str) -> None:
    assert [step[what] for step in seen.patched[kind]] == [step[what] for step in seen.stock[kind]]


def test_a_new_prompt_starts_from_nothing(seen: Comparison, release: str) -> None:
    for step in seen.patched["built"]:
        tokens, computed, _ = zip(*step["rows"], strict=True)
        found = step["metadata"]
        assert step["goes on"] == [before > 0 for before in computed]
        assert found["num_decode_tokens"] + found["num_prefill_tokens"] in {sum(tokens), found["num_actual_tokens"]}
    wrong = [step for step in seen.stock["built"] if step["goes on"] != [before > 0 for _, before, _ in step["rows"]]]
    assert bool(wrong) is not since(release, "0.31")


def test_other_steps_and_what_graphs_read_stay(seen: Comparison, release: str) -> None:
    steps = [*zip(seen.stock["built"], seen.patched["built"], strict=True)]
    for stock, patched in steps:
        assert stock["read"] == patched["read"]
        if all(row[:2] != [1, 0] for row in stock["rows"]) or since(release, "0.31"):
            assert stock == patched
    assert len({str(stock["read"]) for stock, _ in steps}) > 5


def test_what_the_scheduler_pads(seen: Comparison, release: str) -> None:
    pads = since(release, "0.25")
    assert fact("hybrid-one-token", release) == "pending"
    stock = dict.fromkeys(("0 True", "0 False", "7 True", "7 False"), True if pads else None)
    assert seen.stock["padded"] == stock
    assert seen.patched["padded"] == (stock | {"0 True": False} if pads else stock)
