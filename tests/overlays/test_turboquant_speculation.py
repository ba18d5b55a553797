"""The refusal of TurboQuant with speculation: which overlays add it, and what it says."""

from __future__ import annotations

import sys
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest
from vpatch.core.catalogue import discover
from vpatch.tree.locate import locate
from vpatch_overlays.companions.turboquant_speculation import refuse_wrong_attention

from tests.conftest import Program, Trees
from tests.engines import engine_of
from tests.releases import tiered

COMPANION = "vllm/_vpatch/turboquant_speculation.py"
ADDS = {"0.20.2": "turboquant-hybrid", "0.21.0": "turboquant-workspace", "0.26.0": "turboquant-auto-dtype"}
"""The overlay that adds the refusal, by release; `test_orders.py` has the orders with others."""


@pytest.mark.parametrize("release", tiered(ADDS))
def test_only_an_overlay_that_removes_a_crash_adds_the_refusal(release: str, slim: Trees) -> None:
    read, named = cache(locate(slim(release)).read), [item for item in discover() if item.id.startswith("turboquant-")]

    adds = {item.id for item in named if COMPANION in engine_of(discover()).plan(read, [item]).files}

    assert adds == {ADDS[release]}


@pytest.mark.parametrize("overlay", ADDS.values())
def test_show_tells_of_the_refusal(vpatch: Program, overlay: str) -> None:
    shown = " ".join(vpatch("show", overlay).out.split())

    assert "speculative decoding" in shown
    assert "refuses to start" in shown
    assert "`enforce_eager`" in shown
    assert "`turboquant-mtp`, also a default overlay" in shown


class Builder:
    """A stand-in for vLLM's metadata builder, with the configuration that the refusal reads."""

    def __init__(self, *, full: bool, asynchronous: bool, method: str | None = "mtp") -> None:
        self.vllm_config = SimpleNamespace(
            speculative_config=method and SimpleNamespace(method=method),
            compilation_config=SimpleNamespace(cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: full)),
            scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
            cache_config=SimpleNamespace(cache_dtype="turboquant_k8v4"),
        )


@pytest.fixture(params=[True, False], ids=["lengths on the CPU", "lengths on the device"])
def lengths_on_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    metadata = type("TurboQuantMetadata", (), {"__annotations__": {"seq_lens_cpu": "Tensor"} if request.param else {}})
    module = SimpleNamespace(TurboQuantMetadata=metadata)
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backends.turboquant_attn", module)
    found: bool = request.param
    return found


def refused(builder: Any) -> set[str]:
    try:
        refuse_wrong_attention(builder)
    except ValueError as error:
        return {word.strip(",") for word in str(error).split() if word.startswith("--")} - {"--kv-cache-dtype"}
    return set()


@pytest.mark.parametrize(("full", "asynchronous"), [*product((True, False), repeat=2)])
def test_the_message_names_the_options_that_help(lengths_on_cpu: bool, full: bool, asynchronous: bool) -> None:  # noqa: FBT001
    late = asynchronous and lengths_on_cpu

    options = {name for name, helps in (("--enforce-eager", full), ("--no-async-scheduling", late)) if helps}
    assert refused(Builder(full=full, asynchronous=asynchronous)) == options
    assert refused(Builder(full=full, asynchronous=asynchronous, method=None)) == set()


@pytest.mark.usefixtures("lengths_on_cpu")
def test_the_message_names_the_overlay_that_helps() -> None:
    with pytest.raises(ValueError, match="The vpatch overlay turboquant-mtp corrects this"):
        refuse_wrong_attention(cast("Any", Builder(full=True, asynchronous=True)))


@pytest.mark.usefixtures("lengths_on_cpu")
def test_a_builder_that_verifies_exactly_is_not_refused() -> None:
    class Corrected(Builder):
        verifies_exactly = True

    assert refused(Corrected(full=True, asynchronous=True)) == set()
