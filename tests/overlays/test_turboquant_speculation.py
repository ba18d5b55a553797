"""The refusal of TurboQuant with speculation: which overlays add it. Its texts: test_turboquant_speculation_cpu.py."""

from __future__ import annotations

from functools import cache

import pytest
from vpatch.core.catalogue import discover
from vpatch.tree.locate import locate

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
