"""The refusal of TurboQuant with speculation: which overlays add it, in any order; what `show` and `apply` print."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import permutations
from types import SimpleNamespace
from typing import Any

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
NOTE = (
    "do not serve a TurboQuant KV cache with speculative decoding (--speculative-config) unless you add {}. "
    "The answers would be wrong, so the patched vLLM refuses to start"
)
SYNCHRONOUS = "--enforce-eager --no-async-scheduling"

# The overlay that adds the refusal, and every overlay that could conflict with it, by release.
RELEASES = {
    "0.20.2": ("turboquant-hybrid", ("turboquant-hybrid", "turboquant-workspace", "turboquant-tiles")),
    "0.21.0": ("turboquant-workspace", ("turboquant-workspace", "turboquant-skip-list", "turboquant-tiles")),
    "0.26.0": ("turboquant-auto-dtype", ("turboquant-auto-dtype", "turboquant-skip-list", "turboquant-tiles")),
}


ORDERS = [
    (pytest.param if (release, number) == ("0.26.0", 5) else deep)(release, order, id=f"{release}-{number}")
    for release, (_, overlays) in RELEASES.items()
    for number, order in enumerate(permutations(overlays))
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


@pytest.mark.parametrize("release", RELEASES)
def test_apply_prints_the_note(release: str, vpatch: Program, linked: Trees) -> None:
    overlay, _ = RELEASES[release]
    tree = linked(release)
    helps = "--enforce-eager" if release == "0.20.2" else SYNCHRONOUS

    ahead = vpatch("apply", "-q", tree, "--check", "--overlay", overlay, "--json")
    done, again = (vpatch("apply", "-q", tree, "--overlay", overlay) for _ in range(2))
    asked = vpatch("apply", "-qv", tree, "--overlay", overlay)

    (note,) = ahead.json["notes"]
    assert note == f"{overlay}: {NOTE.format(helps)}"
    for ran in (done, asked):
        assert (ran.code, ran.err) == (0, f"note: {note}\n")
    assert (again.code, again.err) == (0, ""), "once is enough"


def test_apply_prints_no_note_where_nothing_is_refused(vpatch: Program, linked: Trees) -> None:
    """On 0.20 turboquant-workspace removes no crash, so TurboQuant starts with it where it started before."""
    tree = linked("0.20.2")

    assert vpatch("apply", "-q", tree, "--overlay", "turboquant-workspace", "--json").json["notes"] == []
    assert vpatch("apply", "-q", linked("0.31.0", "merged"), "--json").json["notes"] == []


@pytest.mark.parametrize("overlay", [overlay for overlay, _ in RELEASES.values()])
def test_show_prints_the_note(vpatch: Program, overlay: str) -> None:
    shown = " ".join(vpatch("show", overlay).out.split())

    assert "speculative decoding" in shown
    assert "refuses to start" in shown
    assert "`enforce_eager`" in shown


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


@pytest.mark.usefixtures("lengths_on_cpu")
def test_a_builder_that_verifies_exactly_is_not_refused() -> None:
    class Corrected(Builder):
        verifies_exactly = True

    assert refused(Corrected(full=True, asynchronous=True)) == set()
