"""The cautions of a plan, and the deployments that it refuses because vLLM does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from packaging.version import Version
from vpatch.core.catalogue import discover
from vpatch.plan import GIB, Attention, Model
from vpatch.plan.cautions import cautions
from vpatch.plan.checkpoint import model_of
from vpatch.plan.deployment import types_of
from vpatch.plan.fit import advise, fit
from vpatch.plan.verdict import PlanVerdict, plan

from tests.plan.configs import named
from tests.plan.examples import FOUR_BITS, MOE, dense, deployment, hybrid, traits
from tests.releases import RELEASES

BOTH: dict[str, Any] = {"speculative_tokens": 1, "enable_prefix_caching": True}
LONG: dict[str, Any] = {"kv_cache_dtype": FOUR_BITS, "max_model_len": 262_144, "max_num_batched_tokens": 8192}
DENSE_HYBRID, LARGE = hybrid("Qwen/Qwen3.6-27B", 17.0), hybrid(gib=24.0)
NO_ESTIMATE = ("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0",)


def warned(model: Model, vllm: str = "0.20.2", *, slow_link: bool = False, **options: Any) -> dict[str, str]:
    """Return the cautions of a deployment by name."""
    found = cautions(fit(model, deployment(vllm, **options)), slow_link=slow_link)
    return {caution.name: caution.because for caution in found}


@pytest.mark.parametrize(
    ("model", "options", "names"),
    [
        (dense(), {}, set()),
        (hybrid(), {"kv_cache_dtype": "fp8"}, {"fp8-kv-quality"}),
        (hybrid(head="fp8-block"), {}, {"fp8-head-structured-output"}),
        (hybrid(), {"vllm": "0.18.1"}, {"graphs-uncounted"}),
        (hybrid(), {"vllm": "0.19.1"}, {"graphs-uncounted"}),
        (hybrid(), {"vllm": "0.20.3.dev7"}, {"between-releases"}),
        (hybrid(gib=26.2), {"gpu_memory_utilization": 0.95}, {"tight"}),
        (hybrid(), {"desktop": True, "gpu_memory_utilization": 0.89}, set()),
        (hybrid(), {"desktop": True, "gpu_memory_utilization": 0.92}, {"desktop"}),
        (hybrid(), {"desktop": True, "kv_cache_memory_bytes": 6 * GIB}, {"tight", "uncounted"}),
        (DENSE_HYBRID, LONG | {"gpu_memory_utilization": 0.95}, {"uncounted"}),
        (DENSE_HYBRID, LONG | {"gpu_memory_utilization": 0.78}, {"tight"}),
        (hybrid(MOE, 66.5), {"tensor_parallel_size": 4, "slow_link": True}, {"slow-link"}),
        (hybrid(MOE, 66.5), {"tensor_parallel_size": 4}, set()),
        (hybrid(MOE, 66.5), {"pipeline_parallel_size": 4, "slow_link": True}, set()),
        # On hybrid models of 0.20.0 to 0.25.1.
        (hybrid(), BOTH, {"hybrid-speculation"}),
        (hybrid(), BOTH | {"vllm": "0.20.3.dev7"}, {"hybrid-speculation", "between-releases"}),
        (hybrid(), BOTH | {"speculative_tokens": 0}, set()),
        (hybrid(), BOTH | {"enable_prefix_caching": False}, set()),
        (dense(draft_layers=1), BOTH, set()),
        # On hybrid models of 0.26 to 0.28, unless the estimate for CUDA graphs is off or decides nothing.
        (hybrid(), {"vllm": "0.26.0"}, {"cudagraph-estimate"}),
        (hybrid(), {"vllm": "0.26.0", "enforce_eager": True}, set()),
        (hybrid(), {"vllm": "0.26.0", "kv_cache_memory_bytes": 6 * GIB}, {"tight", "uncounted"}),
        (hybrid(), {"vllm": "0.26.0", "environment": NO_ESTIMATE}, {"graphs-uncounted"}),
        # 0.18 starts though a request of full length does not fit.
        (LARGE, {"vllm": "0.18.1", "max_model_len": 262_144}, {"graphs-uncounted", "admits-too-much"}),
        (LARGE, {"vllm": "0.18.1", "max_model_len": 262_144, "longest": True}, {"graphs-uncounted", "admits-too-much"}),
        (LARGE, {"vllm": "0.19.1", "max_model_len": 262_144}, {"graphs-uncounted"}),
    ],
)
def test_cautions(model: Model, options: dict[str, Any], names: set[str]) -> None:
    assert set(warned(model, **options)) == names


@pytest.mark.parametrize(
    ("name", "options", "releases"),
    [("hybrid-speculation", BOTH, ("0.20.0", "0.25.1")), ("cudagraph-estimate", {}, ("0.26.0", "0.28.0"))],
)
def test_releases_with_a_caution(name: str, options: dict[str, Any], releases: tuple[str, str]) -> None:
    first, last = map(Version, releases)

    assert {release for release in RELEASES if name in warned(hybrid(), release, **options)} == {
        release for release in RELEASES if first <= Version(release) <= last
    }


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("turboquant-speculation", {"kv_cache_dtype": FOUR_BITS, "speculative_tokens": 2}, "up to vLLM 0.33.0 at leas"),
        ("turboquant-speculation", {"kv_cache_dtype": FOUR_BITS, "speculative_tokens": 2}, "from vLLM 0.21 on the opt"),
        ("hybrid-speculation", BOTH, "both hybrid-mtp-counts and hybrid-mtp-prefix, up to vLLM 0.25.1"),
        ("between-releases", {"vllm": "0.20.3.dev7"}, "this build is planned as 0.20.2, the release before it"),
        ("desktop", {"desktop": True, "gpu_memory_utilization": 0.92}, "watch it"),
        ("desktop", {"desktop": True, "gpu_memory_utilization": 0.95}, "may not even start"),
        ("uncounted", {"desktop": True, "kv_cache_memory_bytes": 6 * GIB}, "; give --kv-cache-memory-bytes "),
        (
            "uncounted",
            {"desktop": True, "kv_cache_memory_bytes": 6 * GIB},
            " GiB too small beside 3 GiB for the desktop, ",
        ),
        ("cudagraph-estimate", {"vllm": "0.27.0", "enable_prefix_caching": True}, "smaller --max-num-batched-tokens"),
        # With prefix caching, up to 0.26, a batch holds a block.
        (
            "cudagraph-estimate",
            {"vllm": "0.26.0", "enable_prefix_caching": True},
            "-batched-tokens, down to 1072",
        ),
        ("cudagraph-estimate", {"vllm": "0.26.0"}, "on hybrid models, vLLM 0.26 to 0.28 sets too much memory aside"),
    ],
)
def test_what_a_caution_says(name: str, options: dict[str, Any], words: str) -> None:
    assert words in warned(hybrid(), **options)[name]


def test_a_desktop_is_told_one_share() -> None:
    """The smaller one, if a long prompt needs memory as well."""
    found = warned(DENSE_HYBRID, **LONG, desktop=True, gpu_memory_utilization=0.95)

    assert {name for name, because in found.items() if "--gpu-memory-utilization" in because} == {"uncounted"}
    assert "--gpu-memory-utilization" in warned(hybrid(), desktop=True, gpu_memory_utilization=0.95)["desktop"]


AVOIDED: list[Any] = [
    ("turboquant-speculation", {"kv_cache_dtype": FOUR_BITS, "speculative_tokens": 2}, ["turboquant-mtp"]),
    ("hybrid-speculation", BOTH, ["hybrid-mtp-counts", "hybrid-mtp-prefix"]),
    (
        "starved-prompts",
        BOTH | {"vllm": "0.26.0", "max_num_batched_tokens": 1060, "max_num_seqs": 64},
        ["hybrid-align-progress"],
    ),
]


@pytest.mark.parametrize(("name", "options", "overlays"), AVOIDED)
def test_no_caution_where_the_command_avoids_it(name: str, options: dict[str, Any], overlays: list[str]) -> None:
    found = fit(hybrid(), deployment(**options))
    planned = plan(hybrid(), deployment(**options), discover())

    assert set(overlays) <= set(planned.overlays)
    assert name in {one.name for one in cautions(found, overlays[1:])}
    assert name not in {one.name for one in cautions(planned.fit, planned.overlays)}


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (hybrid(gib=24.0), {"gpu_memory_utilization": 0.9}),
        (hybrid(gib=25.0), {"gpu_memory_utilization": 0.93}),
        (hybrid(), {"max_model_len": 229_376, "gpu_memory_utilization": 0.92}),
    ],
)
def test_every_value_that_tight_has_fits_for_sure(model: Model, options: dict[str, Any]) -> None:
    asked = deployment(**options)
    ways = warned(model, **options)["tight"].partition("it fits with ")[2].split(" or ")

    assert len(ways) >= 1
    for option, value in map(str.split, ways):
        field = option.removeprefix("--").replace("-", "_")
        changed = replace(asked, **{field: type(getattr(asked, field))(value)})
        assert plan(model, changed, discover()).verdict is PlanVerdict.FITS, option


@pytest.mark.parametrize("options", [{"kv_cache_memory_bytes": 6 * GIB}, {"gpu_memory_utilization": 0.95}])
def test_what_is_given_for_uncounted_memory_leaves_room(options: dict[str, Any]) -> None:
    model, long = (DENSE_HYBRID, LONG) if "gpu_memory_utilization" in options else (hybrid(), {"desktop": True})
    because = warned(model, **long | options)["uncounted"]
    option, value = because.partition("; give ")[2].rpartition(", or ")[2].removesuffix(" at most").split()
    field = option.removeprefix("--").replace("-", "_")
    kind = type(options[field])

    assert "uncounted" not in warned(model, **long | {field: kind(value)})
    assert "uncounted" in warned(model, **long | {field: kind(value) + (1 << 21 if kind is int else 0.011)})


def test_the_overlay_that_counts_memory_is_given_where_that_is_enough() -> None:
    preset = {"kv_cache_dtype": FOUR_BITS, "max_model_len": 262_144, "max_num_seqs": 64, "max_num_batched_tokens": 8192}
    options: dict[str, Any] = {**preset, "gpu_memory_utilization": 0.95}

    assert "; give --with turboquant-tiles, or --gpu-memory-utilization 0.8" in warned(hybrid(), **options)["uncounted"]
    assert "uncounted" not in warned(hybrid(), **options, tiles=True)


def test_uncounted_memory() -> None:
    """A long context of the 27B takes 3 GiB on top: 1 for the workspace, 2 while a prompt goes on."""
    found = fit(DENSE_HYBRID, deployment(**LONG, gpu_memory_utilization=0.95))
    uncounted = {item.name: round(item.size.likely / GIB, 3) for item in found.memory.items if not item.counted}

    assert uncounted == {"CUDA context": 0.51, "TurboQuant workspace": 1.0, "TurboQuant continuation": 2.0}
    assert found.memory.left.likely < 0


SHORT: dict[str, Any] = {"kv_cache_dtype": FOUR_BITS, "max_num_batched_tokens": 2048}
ONE_BLOCK = SHORT | {"enable_prefix_caching": True}
LING = model_of(named("BailingMoeV2ForCausalLM", num_nextn_predict_layers=1), "", name="Ling")
NO_DRAFTS, LEFT_OUT = (
    "Qwen3ForCausalLM has no layers of multi-token predi",
    "is loaded without its layers of multi-token",
)


@pytest.mark.parametrize(
    ("model", "options", "what", "cause"),
    [
        (dense(), {"max_model_len": 50_000}, "too long for the model", "50,000 tokens, of 40,960 that the model was"),
        (dense(), {"speculative_tokens": 2}, "--speculative 2", NO_DRAFTS),
        (hybrid(), {"speculative_tokens": 2}, "", ""),
        (LING, {"speculative_tokens": 1}, "--speculative 1", LEFT_OUT),
        # A block that no batch holds is refused with prefix caching, up to 0.26.
        (hybrid(), ONE_BLOCK, "--max-num-batched-tokens 2048", "tokens; give --max-num-batched-tokens 4112,"),
        (hybrid(), SHORT, "", ""),
        (hybrid(), ONE_BLOCK | {"vllm": "0.27.0"}, "", ""),
        # A process takes memory before vLLM asks whether its share is free.
        (hybrid(), {"gpu_memory_utilization": 1.0}, "--gpu-memory-utilization 1", "is not free"),
    ],
)
def test_what_is_refused(model: Model, options: dict[str, Any], what: str, cause: str) -> None:
    problems = plan(model, deployment(**options), discover()).problems

    assert bool(problems) is bool(cause)
    assert not problems or what in str(problems[0])
    assert not problems or cause in problems[0].reason


def test_a_share_that_is_not_free_is_not_advised() -> None:
    share = advise(fit(hybrid(), deployment()), requests=33).gpu_memory_utilization

    assert share is None or share < 0.995


def test_graphs_want_a_block_for_each_request() -> None:
    """As of 0.20.0 vLLM refuses more requests in a batch than blocks, where layers keep states (#38270, #49064)."""
    many: dict[str, Any] = {"max_num_seqs": 256, "kv_cache_memory_bytes": 3 * GIB}
    found = plan(hybrid(), deployment(**many), discover())
    blocks = found.fit.likely.blocks
    (problem,) = found.problems

    assert blocks < 256
    assert (problem.what, problem.where) == ("vLLM refuses to start", "--max-num-seqs 256")
    assert f"for each of 256 requests, there are {blocks}; would fit: --max-num-seqs {blocks}; " in problem.reason
    assert found.advice.max_num_seqs == blocks
    assert fit(hybrid(), replace(found.deployment, max_num_seqs=blocks)).fits
    assert fit(hybrid(), deployment(**many, enforce_eager=True)).fits
    assert fit(hybrid(), deployment("0.19.1", **many)).fits
    assert fit(dense(), deployment(**many, max_model_len=512)).fits


@pytest.mark.parametrize(
    ("model", "options", "since", "why"),
    [
        (dense(), {"kv_cache_dtype": FOUR_BITS, "pipeline_parallel_size": 2}, "0.28.0", "or from 0.29 on many times"),
        (dense(), {"kv_cache_dtype": "turboquant_k8v4", "card": "B200"}, "0.29.0", "no layout in common"),
        (hybrid(), {"pipeline_parallel_size": 14}, "0.20.0", "no attention layer: refused, or from 0.26 on laid out"),
        (dense(attention=Attention(16, 8, 96)), {"kv_cache_dtype": "fp8", "card": "RTX 3090"}, "0.24.0", "before Ada"),
        (dense(dtype="float16"), {"kv_cache_dtype": "bfloat16"}, "0.33.0", "another float type"),
    ],
    ids=["stages", "B200", "no attention", "Ampere", "float type"],
)
def test_what_releases_refuse(model: Model, options: dict[str, Any], since: str, why: str) -> None:
    """Each rule holds from a release on, and not on the release before, as in `test_agreement.py`."""
    before = RELEASES[RELEASES.index(since) - 1]
    usual: dict[str, Any] = {"max_model_len": 2048, "gpu_memory_utilization": 0.9}
    causes = {
        release: [
            problem.cause for problem in plan(model, deployment(release, **usual, **options), discover()).problems
        ]
        for release in (since, before)
        if options.get("kv_cache_dtype", "auto") in types_of(traits(release))
    }

    assert any(why in cause for cause in causes[since])
    assert not any(why in cause for cause in causes.get(before, []))


@pytest.mark.parametrize(("vllm", "refused"), [("0.29.0", True), ("0.30.0", False)])
def test_multi_token_prediction_on_stages(vllm: str, *, refused: bool) -> None:
    options = deployment(vllm, pipeline_parallel_size=2, speculative_tokens=1)
    causes = [problem.cause for problem in plan(hybrid(), options, discover()).problems]

    assert any("cannot be on a stage" in cause for cause in causes) is refused
