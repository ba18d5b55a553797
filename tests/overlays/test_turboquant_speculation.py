"""The refusal of TurboQuant with speculation: which overlays add it, in any order, and what it says."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.tree.apply import apply
from vpatch.tree.locate import locate
from vpatch.tree.write_plan import SitePackages
from vpatch_overlays.companions.turboquant_speculation import refuse_wrong_attention

from tests.conftest import Program, Trees
from tests.engines import engine_of
from tests.tiers import deep

COMPANION = "vllm/_vpatch/turboquant_speculation.py"
# The overlay that adds the refusal, and every overlay that could conflict with it, by release.
OTHERS = ("turboquant-mtp", "turboquant-skip-list", "turboquant-tiles")
RELEASES = {
    "0.20.2": ("turboquant-hybrid", ("turboquant-hybrid", "turboquant-workspace", *OTHERS)),
    "0.21.0": ("turboquant-workspace", ("turboquant-workspace", *OTHERS)),
    "0.26.0": ("turboquant-auto-dtype", ("turboquant-auto-dtype", *OTHERS)),
}


def orders(overlays: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield two orders and their reverses, so that every pair stands in both orders, beside each other and apart."""
    for number in (0, len(overlays) // 2):
        order = (*overlays[number:], *overlays[:number])
        yield from (order, order[::-1])


ORDERS = [
    (pytest.param if (release, number) == ("0.26.0", 1) else deep)(release, order, id=f"{release}-{number}")
    for release, (_, overlays) in RELEASES.items()
    for number, order in enumerate(orders(overlays))
]


@pytest.mark.parametrize(("release", "order"), ORDERS)
def test_every_order_gives_the_same_bytes(release: str, order: Sequence[str], linked: Trees, slim: Trees) -> None:
    _, overlays = RELEASES[release]
    together = engine_of(select(discover(), overlays)).plan(locate(slim(release)).read)
    assert not together.problems
    assert COMPANION in together.files

    tree = linked(release)
    for overlay in order:
        changeset, writes = apply(SitePackages(locate(tree)), select(discover(), (overlay,)))
        assert writes.changed, changeset.problems
    assert {file: (tree / file).read_bytes() for file in together.files} == together.files
    states = engine_of(select(discover(), overlays)).status(locate(tree).read)
    assert {str(verdict.state) for verdict in states} == {"applied"}


@pytest.mark.parametrize("release", ["0.20.2", deep("0.21.0"), deep("0.26.0")])
def test_only_an_overlay_that_removes_a_crash_adds_the_refusal(release: str, slim: Trees) -> None:
    adds = {item.id for item in discover() if COMPANION in engine_of([item]).plan(locate(slim(release)).read).files}

    assert adds == {RELEASES[release][0]}


@pytest.mark.parametrize("overlay", [overlay for overlay, _ in RELEASES.values()])
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


def test_the_message_names_the_options_that_help(lengths_on_cpu: bool) -> None:  # noqa: FBT001 - a fixture
    late = {"--no-async-scheduling"} if lengths_on_cpu else set()

    assert refused(Builder(full=True, asynchronous=True)) == {"--enforce-eager"} | late
    assert refused(Builder(full=True, asynchronous=False)) == {"--enforce-eager"}
    assert refused(Builder(full=False, asynchronous=True)) == late
    assert refused(Builder(full=False, asynchronous=False)) == set()
    assert refused(Builder(full=True, asynchronous=True, method=None)) == set()
    with pytest.raises(ValueError, match="The vpatch overlay turboquant-mtp corrects this"):
        refuse_wrong_attention(cast("Any", Builder(full=True, asynchronous=True)))


@pytest.mark.usefixtures("lengths_on_cpu")
def test_a_builder_that_verifies_exactly_is_not_refused() -> None:
    class Corrected(Builder):
        verifies_exactly = True

    assert refused(Corrected(full=True, asynchronous=True)) == set()
