"""Plan's arithmetic is vLLM's: for models and deployments drawn at random, it equals a release's own code.

The release takes each through its engine's config, its layers, its block size and its KV cache, on the CPU
(`tests.validation.cpu.probe_plan`). Some refuse TurboQuant on hybrid models: for those it is the release with the
overlay for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from vpatch.errors import Failure
from vpatch.plan import ATTENTIVE, SLIDING
from vpatch.plan.checkpoint import model_of
from vpatch.plan.deployment import FP8, TURBOQUANT, Deployment, Gpu
from vpatch.plan.kv_cache import blocks_for, capacity, layout, longest

from tests.plan.drawn import POSITIONS
from tests.plan.draws import DTYPES, NEWER, RANKS, Draw, draws
from tests.plan.examples import traits
from tests.releases import SHAPES, pending, tree_of
from tests.tiers import sampled
from tests.validation.cpu.comparison import ran
from tests.validation.cpu.trees import patched_tree

pytestmark = pytest.mark.deep

Found = dict[str, Any]

DRAWS = {draw.name: draw for draw in draws()}
REFUSED = "refused"
LOCAL = ("SlidingWindowSpec", "ChunkedLocalAttentionSpec")


def _some_quantized(draw: Draw) -> bool:
    """Whether TurboQuant skips some layers of a dense model, but not all: the first two and the last two."""
    return (
        not draw.hybrid
        and not draw.windowed
        and draw.dtype in TURBOQUANT
        and draw.text["num_hidden_layers"] not in (2, 4)
    )


def _stage_without_attention(draw: Draw) -> bool:
    stages = _deployed(draw, "0.33.0").stages(draw.text["num_hidden_layers"])
    kinds = model_of(draw.config, "", name="").layers
    return draw.hybrid and any(set(ATTENTIVE).isdisjoint(kinds[stage.start : stage.stop]) for stage in stages)


def _in_flashinfer(draw: Draw) -> bool:
    return draw.text.get("head_dim") in (64, 128, 256)


def _has_fp8(draw: Draw) -> bool:
    return _in_flashinfer(draw) or "kv_lora_rank" in draw.text


def _power_of_two(draw: Draw) -> bool:
    model = model_of(draw.config, "", name="")
    sizes = {shape.head_size for shape in (model.attention, model.local) if shape}
    return all(size & (size - 1) == 0 for size in sizes)


def _granite(draw: Draw) -> bool:
    return bool(draw.config["model_type"] == "granitemoehybrid")


UNLIKE: dict[str, tuple[str, Callable[[Draw], bool]]] = {
    "only the first group, of states or of windows, is asked whether a request fits": (
        "<0.19",
        lambda draw: draw.hybrid or draw.windowed,
    ),
    "a stage without attention does not pad its pages, and is refused": (">=0.20,<0.26", _stage_without_attention),
    "a stage without attention does not align its blocks, and has groups of its own": (
        ">=0.26",
        lambda draw: _stage_without_attention(draw) and draw.arguments["enable_prefix_caching"],
    ),
    "layers of multi-token prediction cannot be on a stage": (
        "<0.30",
        lambda draw: draw.stages > 1 and draw.speculative > 0,
    ),
    "key heads that cannot be divided are found when weights are loaded": (
        ">=0.20",
        lambda draw: draw.text.get("linear_num_key_heads", 0) % draw.arguments["tensor_parallel_size"] > 0,
    ),
    "Triton has no FP8 before Ada, nor FlashInfer such heads": (
        ">=0.24",
        lambda draw: draw.dtype in FP8 and draw.capability < (8, 9) and not _has_fp8(draw),
    ),
    "FlashAttention is chosen, and fails on the first token": (
        ">=0.20,<0.22",
        lambda draw: draw.dtype in NEWER and draw.capability == (9, 0),
    ),
    "Triton compiles no FP8 before Ada": (
        ">=0.20,<0.24",
        lambda draw: draw.dtype == "fp8_per_token_head" and draw.capability < (8, 9),
    ),
    "FlashInfer is chosen, and its kernels for NVFP4 are missing at the first token": (
        ">=0.21,<0.25",
        lambda draw: draw.dtype == "nvfp4" and draw.capability[0] != 10,
    ),
    "windows are laid out in twice the size of their kernel, which is found when the cache is made": (
        ">=0.25,<0.28",
        lambda draw: draw.dtype == "int4_per_token_head" and SLIDING in model_of(draw.config, "", name="").layers,
    ),
    "the first token finds that heads are of no power of two": (
        ">=0.25,<0.32",
        lambda draw: draw.dtype == "int4_per_token_head" and not _power_of_two(draw),
    ),
    "the transformers of these tests is older than that of a new install, and knows no GLM-4.7-Flash nor Nemotron-H": (
        ">0.19.0,!=0.20.2,<0.24",
        lambda draw: draw.text["model_type"] in ("glm4_moe_lite", "glm_moe_dsa") or draw.listed,
    ),
    "stages take different block sizes, and groups multiply or are refused": (
        ">=0.28",
        lambda draw: _some_quantized(draw) and draw.stages > 1,
    ),
    "FlashInfer, for layers that are left alone, has none of TurboQuant's layouts": (
        ">=0.29",
        lambda draw: _some_quantized(draw) and draw.capability[0] == 10 and _in_flashinfer(draw),
    ),
    "the newest transformers of 0.20.2's names the kinds of a Granite 4's layers otherwise": ("==0.20.2", _granite),
    "plan refuses what works with older transformers only, which does not name these layers hybrid": (
        ">=0.20,!=0.20.2,<0.24",
        lambda draw: draw.config["model_type"] in ("falcon_h1", "zamba2") and draw.dtype in TURBOQUANT,
    ),
    "the newest transformers names the kinds of a Granite 4's layers otherwise": (">=0.24,<0.26", _granite),
    "with it, a Granite 4 without states is taken for a hybrid": (
        ">=0.26,<0.29",
        lambda draw: _granite(draw) and "mamba" not in draw.text["layer_types"],
    ),
    "Kimi's states are in float32: vLLM ignores another type, and from 0.30 on takes less room than they need": (
        "",
        lambda draw: draw.config["model_type"] == "kimi_linear" and "mamba_ssm_cache_dtype" in draw.arguments,
    ),
    "a cache of another float type than the model's is refused": (
        ">=0.33",
        lambda draw: draw.dtype == "bfloat16" and draw.text["dtype"] == "float16",
    ),
}
"""Known differences between plan and vLLM: the reason, the releases, and the draws."""


@pytest.fixture(scope="module", params=sorted({"0.20.2", *sampled(SHAPES[::-1], 6)}))
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def seen(release: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """Return the results of the release by the name of the draw."""

    def look(tree: Path, some: list[Draw]) -> dict[str, Found]:
        cases = tmp_path_factory.mktemp("cases") / "cases.json"
        cases.write_text(json.dumps([asdict(draw) for draw in some]))
        found = ran("probe_plan", release, tree, str(cases))["found"]
        return {draw.name: one for draw, one in zip(some, found, strict=True)}

    helped = [draw for draw in DRAWS.values() if _wants_overlay(draw, release)]
    found = look(tree_of(release), [draw for draw in DRAWS.values() if draw not in helped])
    return found | (look(patched_tree(release, "turboquant-hybrid"), helped) if helped else {})


@pytest.fixture(scope="module")
def planned(release: str) -> dict[str, Found | str]:
    """Return plan's results by the name of the draw."""
    return {name: ours(draw, release) for name, draw in DRAWS.items()}


@pytest.mark.parametrize("name", DRAWS)
def test_plan_agrees_with_the_release(release: str, seen: dict[str, Found], planned: dict[str, Any], name: str) -> None:
    known = [why for why, (span, meant) in UNLIKE.items() if release in SpecifierSet(span) and meant(DRAWS[name])]

    assert planned[name] == theirs(seen[name]) or known


@pytest.mark.parametrize("why", UNLIKE)
def test_known_differences_exist(release: str, seen: dict[str, Found], planned: dict[str, Any], why: str) -> None:
    span, meant = UNLIKE[why]
    unlike = [name for name, draw in DRAWS.items() if meant(draw) and planned[name] != theirs(seen[name])]

    assert unlike or release not in SpecifierSet(span)


def test_enough_draws_are_accepted(seen: dict[str, Found], release: str) -> None:
    """Releases before 0.20 refuse all draws with newer KV caches."""
    assert sum("error" not in found for found in seen.values()) >= (40 if Version(release) >= Version("0.20") else 20)


def test_every_cache_is_drawn_for_each_kind_and_every_number_of_gpus() -> None:
    drawn = {(draw.dtype, draw.hybrid, draw.arguments["tensor_parallel_size"]) for draw in DRAWS.values()}

    assert len(DRAWS) >= 60
    assert drawn == set(product((*DTYPES, *NEWER), (False, True), RANKS))


def _deployed(draw: Draw, release: str) -> Deployment:
    return Deployment(
        release=traits(release),
        gpu=Gpu("drawn", 0, draw.capability),
        max_model_len=draw.arguments["max_model_len"],
        max_num_batched_tokens=draw.arguments["max_num_batched_tokens"],
        kv_cache_dtype=draw.dtype,
        tensor_parallel_size=draw.arguments["tensor_parallel_size"],
        pipeline_parallel_size=draw.stages,
        speculative_tokens=draw.speculative,
        enable_prefix_caching=draw.arguments["enable_prefix_caching"],
        mamba_ssm_cache_dtype=draw.arguments.get("mamba_ssm_cache_dtype", "auto"),
    )


def ours(draw: Draw, release: str) -> Found | str:
    """Return plan's results for a draw."""
    model = model_of(draw.config, "config.json", name=draw.name)
    deployed = _deployed(draw, release)
    try:
        laid = layout(model, deployed)
    except Failure:
        return REFUSED

    held = capacity(laid, deployed, [draw.budget] * draw.stages)
    length = longest(laid, deployed, held.blocks)
    needed = blocks_for(laid, deployed.max_model_len) + deployed.release.keeps_null_block
    sizes = {
        "block_size": laid.block_size,
        "state_bytes": laid.state_bytes,
        "groups": laid.groups,
        "attention_groups": laid.attention_groups,
        "bytes_per_block": laid.bytes_per_block,
        "needed": needed * max(laid.bytes_per_block),
        "longest": min(length, POSITIONS),
    }
    if length < deployed.max_model_len:
        return sizes | {"held": REFUSED}
    return sizes | {"held": {"blocks": held.blocks, "concurrency": held.concurrency, "printed": held.printed}}


def theirs(found: Found) -> Found | str:
    """Return the results of the release's own code for a draw, in the same terms."""
    if "error" in found and found["stage"] != "admission":
        return REFUSED
    states = [group for group in found["groups"] if group["kind"] == "MambaSpec"]
    windows = [group for group in found["groups"] if group["kind"] in LOCAL]
    growing = [group for group in found["groups"] if group not in states + windows]
    sizes = {
        "block_size": (growing + windows)[0]["block_size"],
        "state_bytes": max((group["raw"] for group in states), default=0),
        "groups": tuple(group["layers"] for group in growing + windows + states),
        "attention_groups": len(growing),
        "bytes_per_block": tuple(found["bytes_per_block"]),
        "needed": found["needed"],
        "longest": found["longest"],
    }
    if "error" in found:
        assert found["error"][0] == "ValueError"
        return sizes | {"held": REFUSED}
    (printed,) = set(found["printed"])
    return sizes | {"held": {"blocks": found["blocks"], "concurrency": found["concurrency"], "printed": printed}}


def _wants_overlay(draw: Draw, release: str) -> bool:
    return draw.hybrid and draw.dtype in TURBOQUANT and release in pending("turboquant-hybrid")
