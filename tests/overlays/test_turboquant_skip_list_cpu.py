"""turboquant-skip-list in the real vLLM: the configs, and what the layers make of the list."""

from __future__ import annotations

import pytest

from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, compared
from tests.validation.cpu.probe_skip_list import INDICES, NAMES, SKIPPED

pytestmark = pytest.mark.deep

ORDERED = {
    "none": "0 1 26 27",
    "one": "0 1 5 26 27",
    "several": "0 1 5 9 12 26 27",
    "a name": "0 1 26 27 sliding_window",
    "names and indices": "0 1 5 12 26 27 chunked sliding_window",
}


@pytest.fixture(scope="module", params=sampled(("0.20.2", "0.21.0", "0.31.0", "0.23.0", "0.26.0", "0.24.0"), 3))
def seen(request: pytest.FixtureRequest, folder: str) -> Comparison:
    release = request.param
    # Before 0.21 hybrid models are refused without the other overlay.
    overlays = ("turboquant-skip-list", *(("turboquant-hybrid",) if release < "0.21" else ()))
    return compared("probe_skip_list", release, overlays, folder)


@pytest.mark.parametrize("name", NAMES)
def test_stock_fails_on_a_name(seen: Comparison, name: str) -> None:
    kind, message = seen.stock["dense"][name]["error"]

    assert kind == "ValueError"
    assert message.startswith("invalid literal for int() with base 10: ")


def test_the_list(seen: Comparison) -> None:
    stock, patched = (found["dense"] for found in seen)

    assert {name: patched[name]["skip_layers"] for name in ORDERED} == {k: v.split() for k, v in ORDERED.items()}
    assert patched["no integers"]["skip_layers"] == ["0", "1", "26", "27", "", "0x7", "5.0", "9" * 5000, "two", "²"]
    for name in INDICES:  # in the order and with the hashes of stock
        assert "error" not in stock[name]
        assert patched[name] == stock[name]


def test_a_hybrid_model_has_no_boundary_layers(seen: Comparison) -> None:
    found = seen.patched["hybrid"]

    assert found["a name"]["skip_layers"] == ["sliding_window"]
    assert found["names and indices"]["skip_layers"] == ["5", "12", "chunked", "sliding_window"]
    assert {seen.stock["hybrid"][name]["error"][0] for name in NAMES} <= {"ValueError", "NotImplementedError"}


def test_a_name_skips_the_layers_of_that_kind(seen: Comparison) -> None:
    assert seen.stock["windowed"]["by name"]["error"][0] == "ValueError"
    assert seen.patched["windowed"]["by index"] == seen.stock["windowed"]["by index"]

    caches = seen.patched["windowed"]["by name"]["caches"]

    assert caches == seen.stock["windowed"]["by index"]["caches"]
    skipped = {name for name, (dtype, _) in caches.items() if dtype == "auto"}
    assert skipped == {f"model.layers.{index}.self_attn.attn" for index in (*SKIPPED["by index"], "11")}
    assert {dtype for dtype, _ in caches.values()} == {"auto", "turboquant_4bit_nc"}
