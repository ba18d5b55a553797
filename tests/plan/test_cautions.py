"""The cautions of a plan, and the deployments that it refuses because vLLM does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from packaging.version import Version
from vpatch.core.catalogue import discover
from vpatch.plan import GIB, Attention, Model
from vpatch.plan.checkpoint import model_of
from vpatch.plan.deployment import Deployment
from vpatch.plan.fit import advise, fit
from vpatch.plan.kv_types import types_of
from vpatch.plan.planner import plan

from tests.plan.configs import named
from tests.plan.examples import FOUR_BITS, MOE, dense, deployment, hybrid, weights_of
from tests.plan.test_model_cards import planned
from tests.releases import RELEASES


def names(model: Model, said: Deployment, **more: Any) -> set[str]:
    return {caution.name for caution in plan(model, said, discover(), **more).cautions}


def test_cautions() -> None:
    turboquant: dict[str, Any] = {"kv_cache_dtype": FOUR_BITS}
    head = planned("qwen3.6-35b-5090-32k-fp8head")[0].head

    assert names(hybrid(), deployment(kv_cache_dtype="fp8")) == {"fp8-kv-quality"}
    assert names(hybrid(head=head), deployment()) == {"fp8-head-structured-output"}
    assert "turboquant-speculation" in names(hybrid(), deployment(**turboquant, speculative_tokens=2))
    found = plan(hybrid(), deployment(**turboquant, speculative_tokens=2), discover()).cautions
    (speculation,) = (caution.because for caution in found if caution.name == "turboquant-speculation")
    assert "apply the overlay turboquant-mtp, or add --enforce-eager --no-async-scheduling" in speculation
    assert speculation.endswith("turboquant-decode puts it into them, for up to eight drafts")
    assert names(hybrid(), deployment("0.19.1")) == {"graphs-uncounted"}
    assert names(hybrid(), deployment("0.18.1")) == {"graphs-uncounted"}
    large, long = hybrid(gib=24.0), 262_144
    assert not fit(large, weights_of(large), deployment("0.18.1", max_model_len=long)).fits
    assert "admits-too-much" in names(large, deployment("0.18.1", max_model_len=long))
    assert "admits-too-much" in names(large, deployment("0.18.1", max_model_len=long, longest=True))
    assert "admits-too-much" not in names(large, deployment("0.19.1", max_model_len=long))
    assert names(hybrid(gib=26.2), deployment(gpu_memory_utilization=0.95)) >= {"tight"}
    assert names(dense(), deployment()) == set()


def test_speculation_with_prefix_caching_needs_two_overlays() -> None:
    """On hybrid models of 0.20.0 to 0.25.1."""
    name = "hybrid-speculation"
    both: dict[str, Any] = {"speculative_tokens": 1, "enable_prefix_caching": True}
    warned = {release for release in RELEASES if name in names(hybrid(), deployment(release, **both))}

    assert warned == {release for release in RELEASES if Version("0.20") <= Version(release) < Version("0.26")}
    found = plan(hybrid(), deployment(**both), discover()).cautions
    (said,) = (caution.because for caution in found if caution.name == name)
    assert "both hybrid-mtp-counts and hybrid-mtp-prefix" in said
    assert name in names(hybrid(), deployment("0.20.3.dev7", **both))
    assert name not in names(hybrid(), deployment(**both | {"speculative_tokens": 0}))
    assert name not in names(hybrid(), deployment(**both | {"enable_prefix_caching": False}))
    assert name not in names(dense(draft_layers=1), deployment(**both))


def test_memory_for_graphs_is_estimated_too_high() -> None:
    """On hybrid models of 0.26 to 0.28, unless the estimate is off or decides nothing."""
    name = "cudagraph-estimate"
    warned = {release for release in RELEASES if name in names(hybrid(), deployment(release))}

    assert warned == {"0.26.0", "0.27.0", "0.27.1", "0.28.0"}
    assert name not in names(dense(), deployment("0.26.0"))
    for off in (
        {"enforce_eager": True},
        {"kv_cache_memory_bytes": 6 * GIB},
        {"environment": ("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0",)},
    ):
        assert name not in names(hybrid(), deployment("0.26.0", **off))


@pytest.mark.parametrize(
    ("vllm", "caches", "told"),
    [
        ("0.26.0", True, "(at least 4,112, the tokens of a block and of decodes)"),
        ("0.26.0", False, ""),
        ("0.27.0", True, ""),
    ],
)
def test_the_smallest_batch_is_named(vllm: str, caches: bool, told: str) -> None:  # noqa: FBT001 - pytest's
    """With prefix caching, up to 0.26, a batch holds a block."""
    said = deployment(vllm, kv_cache_dtype=FOUR_BITS, enable_prefix_caching=caches)
    found = plan(hybrid(), said, discover()).cautions
    (because,) = (caution.because for caution in found if caution.name == "cudagraph-estimate")

    assert because.endswith(f"or give a smaller --max-num-batched-tokens {told}".rstrip())


@pytest.mark.parametrize(("share", "told"), [(0.89, None), (0.92, "watch it"), (0.95, "may not even start")])
def test_a_desktop_wants_room(share: float, told: str | None) -> None:
    found = plan(hybrid(), deployment(desktop=True, gpu_memory_utilization=share), discover()).cautions
    said = [caution.because for caution in found if caution.name == "desktop"]

    assert bool(said) is bool(told)
    assert not told or told in said[0]


def test_a_build_that_no_release_came_of_is_named() -> None:
    build, release = (plan(hybrid(), deployment(vllm), discover()).cautions for vllm in ("0.20.3.dev7", "0.20.2"))

    assert {caution.name: caution.because for caution in set(build) - set(release)} == {
        "between-releases": "vLLM 0.20.3 was not released: this build is planned as 0.20.2, the release before it"
    }


def test_uncounted_memory() -> None:
    """A long context of the 27B takes 3 GiB on top: 1 for the workspace, 2 while a prompt goes on."""
    lengths = {"max_model_len": 262_144, "max_num_batched_tokens": 8192}
    long: dict[str, Any] = {"kv_cache_dtype": FOUR_BITS, **lengths}
    model = hybrid("Qwen/Qwen3.6-27B", 17.0)
    found = fit(model, weights_of(model), deployment(**long, gpu_memory_utilization=0.95))
    uncounted = {item.name: round(item.size.likely / GIB, 3) for item in found.memory.items if not item.counted}

    assert uncounted == {"CUDA context": 0.51, "TurboQuant workspace": 1.0, "TurboQuant continuation": 2.0}
    assert found.memory.left.likely < 0
    assert "uncounted" in names(model, found.deployment)
    assert "uncounted" not in names(model, deployment(**long, gpu_memory_utilization=0.78))


def test_what_is_counted_does_not_come_on_top() -> None:
    """A desktop wants 3 GiB of the card, and vLLM leaves it less: no other caution applies."""
    said: dict[str, Any] = {"desktop": True, "gpu_memory_utilization": 0.92}

    assert names(hybrid(), deployment(**said)) == {"desktop"}
    found = plan(hybrid(), deployment(**said, kv_cache_memory_bytes=6 * GIB), discover()).cautions
    (uncounted,) = (caution.because for caution in found if caution.name == "uncounted")
    assert uncounted.endswith("; lower --kv-cache-memory-bytes")


def test_buffers_of_decode_on_0_20() -> None:
    """The figures of the 35B: 331 MiB for 64 requests, which the card's weights show for 16."""
    found = fit(hybrid(), weights_of(hybrid()), deployment(kv_cache_dtype=FOUR_BITS, max_num_seqs=64))
    buffers = next(item for item in found.memory.items if item.name == "TurboQuant buffers")

    assert round(buffers.size.likely / 2**20) == 331
    assert buffers.counted


def test_a_slow_link_is_for_pipelines_only() -> None:
    model = hybrid(MOE, 66.5)
    across = deployment(tensor_parallel_size=4)
    along = deployment(pipeline_parallel_size=4)

    assert "slow-link" in names(model, across, slow_link=True)
    assert "slow-link" not in names(model, across) | names(model, along, slow_link=True)


def test_a_block_that_no_batch_holds_is_refused_with_prefix_caching() -> None:
    said: dict[str, Any] = {"kv_cache_dtype": FOUR_BITS, "max_num_batched_tokens": 2048}
    off, on = (plan(hybrid(), deployment(enable_prefix_caching=on, **said), discover()) for on in (False, True))

    assert [problem.what for problem in on.problems] == ["vLLM refuses to start"]
    assert "a block, which is 4,096 tokens" in on.problems[0].cause
    assert not off.problems
    assert not plan(hybrid(), deployment("0.27.0", enable_prefix_caching=True, **said), discover()).problems
    assert "block-size" in [caution.name for caution in off.cautions]


def test_a_length_beyond_the_models_is_refused() -> None:
    found = plan(dense(), deployment(max_model_len=50_000), discover())

    assert [problem.what for problem in found.problems] == ["too long for the model"]


def test_a_model_without_a_draft_cannot_speculate() -> None:
    (problem,) = plan(dense(), deployment(speculative_tokens=2), discover()).problems

    assert (problem.what, problem.where) == ("vLLM refuses to start", "--speculative 2")
    assert not plan(hybrid(), deployment(speculative_tokens=2), discover()).problems

    ling = model_of(named("BailingMoeV2ForCausalLM", num_nextn_predict_layers=1), "", name="Ling")
    assert weights_of(ling).draft
    problem = plan(ling, deployment(speculative_tokens=1), discover()).problems[0]
    assert problem.cause == "BailingMoeV2ForCausalLM is loaded without its layers of multi-token prediction"


def test_graphs_want_a_block_for_each_request() -> None:
    """As of 0.20.0 vLLM refuses more requests in a batch than blocks, where layers keep states (#38270, #49064)."""
    many: dict[str, Any] = {"max_num_seqs": 256, "kv_cache_memory_bytes": 3 * GIB}
    found = plan(hybrid(), deployment(**many), discover())
    blocks = found.fit.likely.blocks
    (problem,) = found.problems

    assert blocks < 256
    assert (problem.what, problem.where) == ("vLLM refuses to start", "--max-num-seqs 256")
    assert f"for each of 256 requests, there are {blocks}; would fit: --max-num-seqs {blocks}; " in problem.cause
    assert found.advice.max_num_seqs == blocks
    assert not plan(hybrid(), replace(found.deployment, max_num_seqs=blocks), discover()).problems
    for other in (deployment(**many, enforce_eager=True), deployment("0.19.1", **many)):
        assert not plan(hybrid(), other, discover()).problems
    assert not plan(dense(), deployment(**many, max_model_len=512), discover()).problems


def test_a_share_that_is_not_free_is_refused() -> None:
    """A process takes memory before vLLM asks whether its share is free."""
    found = plan(hybrid(), deployment(gpu_memory_utilization=1.0), discover())
    advice = advise(hybrid(), weights_of(hybrid()), deployment(), requests=33)

    assert [problem.what for problem in found.problems] == ["vLLM refuses to start"]
    assert "is not free" in found.problems[0].cause
    assert advice.gpu_memory_utilization is None or advice.gpu_memory_utilization < 0.995


@pytest.mark.parametrize(
    ("model", "said", "since", "why"),
    [
        (dense(), {"kv_cache_dtype": FOUR_BITS, "pipeline_parallel_size": 2}, "0.28.0", "different block sizes"),
        (dense(), {"kv_cache_dtype": "turboquant_k8v4", "card": "B200"}, "0.29.0", "no layout in common"),
        (hybrid(), {"pipeline_parallel_size": 14}, "0.20.0", "would have no attention layer"),
        (dense(attention=Attention(16, 8, 96)), {"kv_cache_dtype": "fp8", "card": "RTX 3090"}, "0.24.0", "before Ada"),
        (dense(dtype="float16"), {"kv_cache_dtype": "bfloat16"}, "0.33.0", "another float type"),
    ],
    ids=["stages", "B200", "no attention", "Ampere", "float type"],
)
def test_what_releases_refuse(model: Model, said: dict[str, Any], since: str, why: str) -> None:
    """Each rule holds from a release on, and not on the release before, as in `test_agreement.py`."""
    before = RELEASES[RELEASES.index(since) - 1]
    usual: dict[str, Any] = {"max_model_len": 2048, "gpu_memory_utilization": 0.9}
    causes = {
        release: [problem.cause for problem in plan(model, deployment(release, **usual, **said), discover()).problems]
        for release in (since, before)
        if said.get("kv_cache_dtype", "auto") in types_of(Version(release))
    }

    assert any(why in cause for cause in causes[since])
    assert not any(why in cause for cause in causes.get(before, []))


def test_multi_token_prediction_on_stages_is_refused_up_to_0_29() -> None:
    said: dict[str, Any] = {"pipeline_parallel_size": 2, "speculative_tokens": 1}
    old, new = (
        [problem.cause for problem in plan(hybrid(), deployment(vllm, **said), discover()).problems]
        for vllm in ("0.29.0", "0.30.0")
    )

    assert any("cannot be on a stage" in cause for cause in old)
    assert not any("cannot be on a stage" in cause for cause in new)
