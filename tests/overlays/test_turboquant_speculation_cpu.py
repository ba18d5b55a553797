"""Where a patched vLLM refuses TurboQuant with speculative decoding: real engines on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version

from tests.releases import pending
from tests.tiers import sampled
from tests.validation.cpu.comparison import each, ran
from tests.validation.cpu.probe_speculation import FOUR_BIT, ON_V2, STARTS
from tests.validation.cpu.trees import patched_tree

Seen = dict[str, dict[str, Any]]

STOPS = ("turboquant-hybrid", "turboquant-workspace", "turboquant-auto-dtype")
"""The overlays that remove a crash; turboquant-workspace removes that of drafts on 0.21 to 0.23."""
PAIRS = [
    (release, overlay)
    for overlay in STOPS
    for release in sampled([one for one in pending(overlay)[::-1] if overlay != STOPS[1] or "0.21" <= one < "0.24"], 3)
]
RIGHT, OPTIMISTIC = [7, 8, 9, 10], [9, 10, 11, 12]

EAGER, SYNCHRONOUS = "--enforce-eager", "--no-async-scheduling"
# The options that each refusal names, on 0.21 and newer.
REFUSED = {
    "ngram": {EAGER},
    "ngram, decode graphs": {EAGER},
    "ngram, full graphs": {EAGER},
    "hybrid, ngram": {EAGER},
    "hybrid, MTP": {EAGER, SYNCHRONOUS},
    "hybrid, MTP, eager": {SYNCHRONOUS},
    "hybrid, MTP, synchronous": {EAGER},
}


pytestmark = pytest.mark.deep
pair = each(pytest.param(pair, id="-".join(pair)) for pair in PAIRS)


@pytest.fixture(scope="module")
def seen(pair: tuple[str, str], folder: str) -> Seen:
    return ran("probe_speculation", pair[0], patched_tree(*pair), folder)


def reads_the_cpu(release: str) -> bool:
    """Whether attention reads lengths from the CPU, which asynchronous scheduling overestimates."""
    return Version(release) >= Version("0.21")


def expected(release: str, name: str) -> set[str]:
    """Return the options that a start is refused without."""
    return REFUSED.get(name, set()) - (set() if reads_the_cpu(release) else {SYNCHRONOUS})


def said(found: dict[str, Any]) -> set[str]:
    """Return the options that a refusal names; none if the engine started."""
    if found.get("started"):
        return set()
    kind, message = found["error"]
    assert kind == "ValueError"
    assert message.startswith(f"TurboQuant KV cache ({FOUR_BIT}) with speculative decoding (")
    assert "another --kv-cache-dtype" in message
    assert "The vpatch overlay turboquant-mtp corrects this" in message
    return {option for option in (EAGER, SYNCHRONOUS) if option in message}


@pytest.mark.parametrize("name", STARTS)
def test_what_vllm_computes_wrongly_is_refused(seen: Seen, pair: tuple[str, str], name: str) -> None:
    """The graphs come from vLLM's own dispatcher, the scheduling from its final configuration."""
    found, options = seen["starts"][name], STARTS[name][1]
    affected = "speculative_config" in options and options.get("kv_cache_dtype", FOUR_BIT) == FOUR_BIT

    assert said(found) == expected(pair[0], name)
    assert (EAGER in said(found)) is (affected and found["full"])
    assert (SYNCHRONOUS in said(found)) is (affected and found["async"] and reads_the_cpu(pair[0]))


@pytest.mark.parametrize("name", ON_V2)
def test_the_v2_runner_refuses_the_same(seen: Seen, pair: tuple[str, str], name: str) -> None:
    assert said(seen["on V2"][name]) == expected(pair[0], name)


def test_attention_is_wrong_in_graphs_and_with_optimistic_lengths(seen: Seen, pair: tuple[str, str]) -> None:
    """With right lengths on the CPU attention is right. With optimistic ones, and in a graph, it is wrong."""
    attended, on_cpu = seen["attended"], reads_the_cpu(pair[0])

    assert attended["synchronous"] == {"lengths": RIGHT}
    assert attended["two drafts rejected"] == {"lengths": OPTIMISTIC if on_cpu else RIGHT}
    assert attended["captured"].keys() == ({"own step"} if on_cpu else {"error"})
