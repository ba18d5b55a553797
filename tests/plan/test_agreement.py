"""Plan's arithmetic is vLLM's: for models and deployments by lot, what it says is what a release's own code comes to.

The release takes each through its engine's config, its layers, its block size and its KV cache, on the CPU
(`tests.cpu.probe_plan`). Some refuse TurboQuant on hybrid models: for those it is the release with the overlay for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from vpatch.errors import Failure
from vpatch.plan.arithmetic import arithmetic_of
from vpatch.plan.checkpoint import model_of
from vpatch.plan.kv_cache import blocks_for, capacity, layout, longest, stages_of
from vpatch.plan.model import FULL, Deployment, Gpu

from tests.cpu.environment import interpreter, probe
from tests.plan.draws import DTYPES, POSITIONS, RANKS, TURBOQUANT, Draw, draws
from tests.releases import RELEASES, pending

Trees = Callable[..., Path]
Found = dict[str, Any]

OFTEN = ("0.20.2", "0.24.0", "0.33.0")
DRAWS = {draw.name: draw for draw in draws()}
REFUSED = "refused"


@dataclass(frozen=True)
class Unlike:
    """Where plan says other than these releases do of these draws."""

    releases: str
    draws: Callable[[Draw], bool]


def _some_quantised(draw: Draw) -> bool:
    """Whether some layers of a dense model have TurboQuant, but not its first two and last two."""
    return not draw.hybrid and draw.dtype in TURBOQUANT and draw.text["num_hidden_layers"] > 4


UNLIKE = {
    "only the first group is asked whether a request fits, which is one of states": Unlike(
        "<0.19", lambda draw: draw.hybrid
    ),
    "a stage without attention does not pad its pages, and is refused": Unlike(
        "<0.26",
        lambda draw: (
            draw.hybrid
            and any(
                FULL not in draw.text["layer_types"][stage.start : stage.stop]
                for stage in stages_of(draw.text["num_hidden_layers"], draw.stages)
            )
        ),
    ),
    "layers of multi-token prediction cannot be on a stage": Unlike(
        "<0.30", lambda draw: draw.stages > 1 and draw.speculative > 0
    ),
    "stages take different block sizes, and groups multiply or are refused": Unlike(
        ">=0.28", lambda draw: _some_quantised(draw) and draw.stages > 1
    ),
    "FlashInfer, for the layers that are skipped, has none of TurboQuant's layouts": Unlike(
        ">=0.29",
        lambda draw: _some_quantised(draw) and draw.capability[0] == 10 and draw.text["head_dim"] in (64, 128, 256),
    ),
    "a cache of another float type than the model's is refused": Unlike(
        ">=0.33", lambda draw: draw.dtype == "bfloat16" and draw.text["dtype"] == "float16"
    ),
}


@pytest.fixture(
    scope="module",
    params=[release if release in OFTEN else pytest.param(release, marks=pytest.mark.matrix) for release in RELEASES],
)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def seen(release: str, pristine: Trees, patched: Trees, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """What the release comes to, for each draw by name."""

    def look(tree: Path, some: list[Draw]) -> dict[str, Found]:
        home = tmp_path_factory.mktemp("home")
        cases = tmp_path_factory.mktemp("cases") / "cases.json"
        cases.write_text(json.dumps([asdict(draw) for draw in some]))
        found = probe(interpreter(release), "probe_plan", tree, home, str(cases))["found"]
        return {draw.name: one for draw, one in zip(some, found, strict=True)}

    helped = [draw for draw in DRAWS.values() if _wants_overlay(draw, release)]
    found = look(pristine(release), [draw for draw in DRAWS.values() if draw not in helped])
    return found | (look(patched(release, "turboquant-hybrid"), helped) if helped else {})


@pytest.mark.parametrize("name", DRAWS)
def test_it_says_what_the_release_does(release: str, seen: dict[str, Found], name: str) -> None:
    draw = DRAWS[name]
    mine, real = ours(draw, release), theirs(seen[name])

    if mine != REFUSED and unlike(draw, release):
        assert mine != real, "no longer unlike"
    else:
        assert mine == real


@pytest.mark.parametrize("why", UNLIKE)
def test_what_is_unlike_is_drawn(why: str) -> None:
    assert any(map(UNLIKE[why].draws, DRAWS.values()))


def test_enough_draws_are_accepted(seen: dict[str, Found], release: str) -> None:
    """Of those of newer KV caches, releases before 0.20 know none."""
    assert sum("error" not in found for found in seen.values()) >= (40 if Version(release) >= Version("0.20") else 20)


def test_every_cache_is_drawn_for_each_kind_and_every_number_of_gpus() -> None:
    drawn = {(draw.dtype, draw.hybrid, draw.ranks) for draw in DRAWS.values()}

    assert len(DRAWS) >= 60
    assert drawn == set(product(DTYPES, (False, True), RANKS))


def unlike(draw: Draw, release: str) -> bool:
    """Say whether it is known that plan and the release say different things."""
    return any(release in SpecifierSet(one.releases) and one.draws(draw) for one in UNLIKE.values())


def ours(draw: Draw, release: str) -> Found | str:
    """Give what plan makes of a draw."""
    model = model_of(draw.config, "config.json", name=draw.name)
    said = Deployment(
        vllm=Version(release),
        gpu=Gpu("drawn", 0, draw.capability),
        max_model_len=draw.arguments["max_model_len"],
        kv_cache_dtype=draw.dtype,
        tensor_parallel_size=draw.ranks,
        pipeline_parallel_size=draw.stages,
        speculative_tokens=draw.speculative,
        enable_prefix_caching=draw.arguments["enable_prefix_caching"],
    )
    try:
        laid = layout(model, said)
    except Failure:
        return REFUSED

    traits = arithmetic_of(said.vllm)
    held = capacity(laid, said, [draw.budget] * draw.stages)
    length = longest(laid, said, held.blocks)
    needed = blocks_for(laid, said.max_model_len) + traits.keeps_null_block
    sizes = {
        "block_size": laid.block_size,
        "state_bytes": laid.state_bytes,
        "groups": laid.groups,
        "attention_groups": laid.attention_groups,
        "bytes_per_block": laid.bytes_per_block,
        "needed": needed * max(laid.bytes_per_block),
        "longest": min(length, POSITIONS),
    }
    if length < said.max_model_len:
        return sizes | {"held": REFUSED}
    printed = held.slots if traits.prints_slots else held.tokens
    return sizes | {"held": {"blocks": held.blocks, "concurrency": held.concurrency, "printed": printed}}


def theirs(found: Found) -> Found | str:
    """Give what the release's own code made of a draw, in the same words."""
    if "error" in found and found["stage"] != "admission":
        return REFUSED
    states = [group for group in found["groups"] if group["kind"] == "MambaSpec"]
    growing = [group for group in found["groups"] if group["kind"] != "MambaSpec"]
    sizes = {
        "block_size": growing[0]["block_size"],
        "state_bytes": max((group["raw"] for group in states), default=0),
        "groups": tuple(group["layers"] for group in growing + states),
        "attention_groups": len(growing),
        "bytes_per_block": tuple(found["bytes_per_block"]),
        "needed": found["needed"],
        "longest": found["longest"],
    }
    if "error" in found:
        assert found["error"][0] == "ValueError"
        return sizes | {"held": REFUSED}
    (printed,) = set(found["printed"])
    return sizes | {
        "held": {"blocks": found["blocks"], "concurrency": found["concurrency"], "printed": printed},
    }


def _wants_overlay(draw: Draw, release: str) -> bool:
    return draw.hybrid and draw.dtype in TURBOQUANT and release in pending("turboquant-hybrid")
