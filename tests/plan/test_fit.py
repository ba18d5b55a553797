"""Whether it fits, by how much not, and what would."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from packaging.version import Version
from vpatch.catalogue import discover
from vpatch.errors import Failure
from vpatch.plan.advice import SEQUENCES, advise, remedies
from vpatch.plan.arithmetic import arithmetic_of
from vpatch.plan.fit import fit
from vpatch.plan.gpus import gpu
from vpatch.plan.model import GIB, Attention, Deployment, Model, Weights
from vpatch.plan.planned import plan
from vpatch.plan.source import load

from tests.plan.examples import MOE, dense, deployment, hybrid
from tests.plan.seeds import AT_32K, FP8_AT_262K, TURBOQUANT_AT_262K, Printed
from tests.plan.test_seeds import planned
from tests.releases import RELEASES


def weights(model: Model) -> Weights:
    assert model.weights
    return model.weights


@pytest.mark.parametrize("row", [*AT_32K, FP8_AT_262K, TURBOQUANT_AT_262K], ids=lambda row: row.preset)
def test_what_is_estimated_has_the_cards_rows_within_its_bounds(row: Printed) -> None:
    """The recorded weights are the card's; what else vLLM's share went to is the rest.

    Of the rows at 262K the card prints the weights of those at 32K, though TurboQuant's buffers are larger there.
    """
    model, said, _ = planned(row.preset)
    memory = fit(model, weights(model), said).memory

    assert memory.kv_cache.least < row.kv_cache * GIB < memory.kv_cache.most
    assert abs(memory.kv_cache.likely / GIB - row.kv_cache) < (0.4 if row is TURBOQUANT_AT_262K else 0.2)
    assert memory.kv_cache.most - memory.kv_cache.least < 4 * GIB, "bounds so wide say nothing"


def test_a_card_too_small_says_by_how_much_and_what_would_fit() -> None:
    model = hybrid(MOE, 66.5)
    found = plan(model, deployment(), discover())
    (problem,) = found.problems

    assert not found.fit.fits
    assert problem.what == "does not fit"
    assert "GiB are missing on a GPU: what comes before the KV cache takes" in problem.cause
    assert "would fit: --tensor-parallel-size 4; --gpu 'H100'" in problem.cause


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (hybrid(MOE, 66.5), {}),
        (hybrid(gib=25.9), {"max_model_len": 262_144}),
        (dense(gib=24.0), {"max_num_seqs": 512, "max_model_len": 40_960}),
        (hybrid(), {"gpu_memory_utilization": 0.76}),
    ],
    ids=["too large", "too long", "dense", "share too small"],
)
def test_what_is_said_to_fit_does(model: Model, said: dict[str, Any]) -> None:
    wanted = deployment(**said)
    assert not fit(model, weights(model), wanted).fits
    told = list(remedies(model, weights(model), wanted))

    assert told
    for remedy in told:
        option, _, value = remedy.partition(" ")
        field = option.removeprefix("--").replace("-", "_")
        change = {field: gpu(value.strip("'"))} if field == "gpu" else {field: type(getattr(wanted, field))(value)}
        assert fit(model, weights(model), replace(wanted, **change)).fits, remedy


def test_nothing_fits_what_is_larger_than_everything() -> None:
    found = plan(dense(gib=5000.0), deployment(), discover())

    assert found.problems[0].cause.endswith("nothing that is known would fit")


@pytest.mark.parametrize("said", [{}, {"kv_cache_dtype": "turboquant_4bit_nc"}, {"vllm": "0.33.0"}])
@pytest.mark.parametrize("requests", [1, 3])
def test_advice_is_the_bound(requests: int, said: dict[str, Any]) -> None:
    model, wanted = hybrid(), deployment(**said)
    advice = advise(model, weights(model), wanted, requests)

    def serves(count: int = 1, **changed: Any) -> bool:
        found = fit(model, weights(model), replace(wanted, **changed))
        return found.fits and found.likely.concurrency >= count

    assert advice.max_model_len
    assert advice.max_num_seqs
    assert advice.gpu_memory_utilization
    assert serves(max_model_len=advice.max_model_len)
    assert advice.max_model_len == model.max_position_embeddings or not serves(max_model_len=advice.max_model_len + 1)
    assert serves(max_num_seqs=advice.max_num_seqs)
    assert advice.max_num_seqs == SEQUENCES or not serves(max_num_seqs=advice.max_num_seqs + 1)
    assert serves(requests, gpu_memory_utilization=advice.gpu_memory_utilization)
    assert not serves(requests, gpu_memory_utilization=advice.gpu_memory_utilization - 0.001)


def test_no_advice_where_nothing_fits() -> None:
    model = dense(gib=100.0)
    advice = advise(model, weights(model), deployment())

    assert (advice.max_model_len, advice.max_num_seqs, advice.gpu_memory_utilization) == (None, None, None)


def test_a_given_size_of_the_cache_is_taken() -> None:
    model = hybrid()
    found = fit(model, weights(model), deployment(kv_cache_memory_bytes=3 * GIB))

    assert found.memory.kv_cache.exact
    assert found.likely == found.least == found.most
    assert found.likely.blocks == 3 * GIB // found.layout.bytes_per_block[0]
    assert advise(model, weights(model), found.deployment).gpu_memory_utilization is None


def test_the_longest_is_what_auto_takes() -> None:
    model = hybrid(gib=25.6)
    found = plan(model, deployment(max_model_len=262_144, longest=True), discover())

    assert 0 < found.deployment.max_model_len == found.fit.longest < 262_144
    assert found.fit.fits
    assert not found.problems


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_gpus_share_what_is_to_be_shared(stages: int) -> None:
    model = hybrid(MOE, 66.0)
    found = fit(model, weights(model), deployment(tensor_parallel_size=4 // stages, pipeline_parallel_size=stages))

    size = next(item.size for item in found.memory.items if item.name == "weights")
    assert size.likely == pytest.approx(66.0 * GIB / 4, rel=1e-6)


def test_a_block_that_no_batch_holds_is_refused_with_prefix_caching() -> None:
    said: dict[str, Any] = {"kv_cache_dtype": "turboquant_4bit_nc", "max_num_batched_tokens": 2048}
    off, on = (
        plan(hybrid(), deployment(enable_prefix_caching=prefixes, **said), discover()) for prefixes in (False, True)
    )

    assert [problem.what for problem in on.problems] == ["vLLM refuses to start"]
    assert "a block, which is 4,096 tokens" in on.problems[0].cause
    assert not off.problems
    assert not plan(hybrid(), deployment("0.27.0", enable_prefix_caching=True, **said), discover()).problems
    assert "block-size" in [caution.name for caution in off.cautions]


def test_a_length_that_the_model_was_not_made_for() -> None:
    found = plan(dense(), deployment(max_model_len=50_000), discover())

    assert [problem.what for problem in found.problems] == ["too long for the model"]


def test_weights_that_nobody_knows() -> None:
    with pytest.raises(Failure, match=r"unknown weights: .*: give their size by --weights-gib"):
        plan(dense(weights=None), deployment(), discover())


def names(model: Model, said: Deployment, **more: Any) -> set[str]:
    return {caution.name for caution in plan(model, said, discover(), **more).cautions}


def test_cautions() -> None:
    turboquant: dict[str, Any] = {"kv_cache_dtype": "turboquant_4bit_nc"}
    head = planned("qwen3.6-35b-5090-32k-fp8head")[0].head

    assert names(hybrid(), deployment(kv_cache_dtype="fp8")) == {"fp8-kv-quality"}
    assert names(hybrid(head=head), deployment()) == {"fp8-head-structured-output"}
    assert "turboquant-speculation" in names(hybrid(), deployment(**turboquant, speculative_tokens=2))
    assert names(hybrid(), deployment("0.19.1")) == {"graphs-uncounted"}
    assert names(hybrid(), deployment("0.18.1")) == {"graphs-uncounted"}
    large, long = hybrid(gib=24.0), 262_144
    assert not fit(large, weights(large), deployment("0.18.1", max_model_len=long)).fits
    assert "admits-too-much" in names(large, deployment("0.18.1", max_model_len=long))
    assert "admits-too-much" in names(large, deployment("0.18.1", max_model_len=long, longest=True))
    assert "admits-too-much" not in names(large, deployment("0.19.1", max_model_len=long))
    assert names(hybrid(gib=26.2), deployment(gpu_memory_utilization=0.95)) >= {"tight"}
    assert names(dense(), deployment()) == set()


@pytest.mark.parametrize(("share", "told"), [(0.89, None), (0.92, "watch it"), (0.95, "may not even start")])
def test_a_desktop_wants_room(share: float, told: str | None) -> None:
    found = plan(hybrid(), deployment(desktop=True, gpu_memory_utilization=share), discover()).cautions
    said = [caution.because for caution in found if caution.name == "desktop"]

    assert bool(said) is bool(told)
    assert not told or told in said[0]


def test_memory_that_nobody_counts() -> None:
    """A long context of the 27B takes 3 GiB on top: 1 for the workspace, 2 while a prompt goes on."""
    long: dict[str, Any] = {
        "kv_cache_dtype": "turboquant_4bit_nc",
        "max_model_len": 262_144,
        "max_num_batched_tokens": 8192,
    }
    model = hybrid("Qwen/Qwen3.6-27B", 17.0)
    found = fit(model, weights(model), deployment(**long, gpu_memory_utilization=0.95))
    uncounted = {item.name: round(item.size.likely / GIB, 3) for item in found.memory.items if not item.counted}

    assert uncounted == {"CUDA context": 0.51, "TurboQuant workspace": 1.0, "TurboQuant continuation": 2.0}
    assert found.memory.left.likely < 0
    assert "uncounted" in names(model, found.deployment)
    assert "uncounted" not in names(model, deployment(**long, gpu_memory_utilization=0.78))


def test_what_is_counted_does_not_come_on_top() -> None:
    """A desktop wants 3 GiB of the card, and vLLM leaves it less: that is all there is to say."""
    said: dict[str, Any] = {"desktop": True, "gpu_memory_utilization": 0.92}

    assert names(hybrid(), deployment(**said)) == {"desktop"}
    found = plan(hybrid(), deployment(**said, kv_cache_memory_bytes=6 * GIB), discover()).cautions
    (uncounted,) = (caution.because for caution in found if caution.name == "uncounted")
    assert uncounted.endswith("; lower --kv-cache-memory-bytes")


def test_a_model_without_a_draft_cannot_speculate() -> None:
    (problem,) = plan(dense(), deployment(speculative_tokens=2), discover()).problems

    assert (problem.what, problem.where) == ("vLLM refuses to start", "--speculative 2")
    assert not plan(hybrid(), deployment(speculative_tokens=2), discover()).problems


def test_no_remedy_is_longer_than_the_model() -> None:
    model = dense()
    told = list(remedies(model, weights(model), deployment(max_model_len=1 << 40)))

    assert told[0] == "--max-model-len 40960"


def test_decodes_buffers_on_0_20() -> None:
    """The figures of the 35B: 331 MiB for 64 requests, which the card's weights show for 16."""
    found = fit(hybrid(), weights(hybrid()), deployment(kv_cache_dtype="turboquant_4bit_nc", max_num_seqs=64))
    buffers = next(item for item in found.memory.items if item.name == "TurboQuant buffers")

    assert round(buffers.size.likely / 2**20) == 331
    assert buffers.counted


def test_a_slow_link_bears_a_pipeline_only() -> None:
    model = hybrid(MOE, 66.5)
    across = deployment(tensor_parallel_size=4)
    along = deployment(pipeline_parallel_size=4)

    assert "slow-link" in names(model, across, slow_link=True)
    assert "slow-link" not in names(model, across) | names(model, along, slow_link=True)


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


@pytest.mark.parametrize(("model", "size"), [(hybrid(), 93 * GIB), (hybrid(MOE, 65.4), 6 * GIB)])
def test_a_given_size_of_the_cache_has_to_be_there(model: Model, size: int) -> None:
    found = plan(model, deployment(kv_cache_memory_bytes=size), discover())
    (problem,) = found.problems

    assert found.fit.memory.left.likely < 0
    assert not found.fit.fits
    assert problem.what == "does not fit"
    assert "as asked for, and what comes before it are more than the card has; would fit: " in problem.cause
    assert plan(model, deployment(kv_cache_memory_bytes=size, card="H200"), discover()).fit.fits


def test_a_share_that_is_not_free_is_refused() -> None:
    """A process takes memory before vLLM asks whether its share is free."""
    found = plan(hybrid(), deployment(gpu_memory_utilization=1.0), discover())
    advice = advise(hybrid(), weights(hybrid()), deployment(), requests=33)

    assert [problem.what for problem in found.problems] == ["vLLM refuses to start"]
    assert "is not free" in found.problems[0].cause
    assert advice.gpu_memory_utilization is None or advice.gpu_memory_utilization < 0.995


def test_requests_that_are_not_served_are_a_problem() -> None:
    few, many = (plan(hybrid(), deployment(), discover(), requests=count) for count in (2, 100))

    assert not few.problems
    assert [problem.what for problem in many.problems] == ["does not serve as many"]


def test_a_checkpoint_that_brings_scales_for_its_cache_gets_one_in_fp8() -> None:
    model = hybrid(kv_cache_dtype="fp8")

    assert plan(model, deployment(), discover()).deployment.kv_cache_dtype == "fp8"
    assert plan(model, deployment(kv_cache_dtype="bfloat16"), discover()).deployment.kv_cache_dtype == "bfloat16"


def test_a_vision_tower_that_is_not_loaded_takes_nothing() -> None:
    model = load(MOE)
    whole, text = (fit(model, weights(model), deployment(language_model_only=only)) for only in (False, True))
    sizes = [found.memory.items[0].size.likely for found in (whole, text)]

    assert sizes[0] - sizes[1] == weights(model).vision > 0.8 * GIB


def test_a_batch_that_takes_too_much_may_be_smaller() -> None:
    model, wanted = hybrid(), deployment(max_num_batched_tokens=200_000)

    assert "--max-num-batched-tokens 8192" in list(remedies(model, weights(model), wanted))


def test_what_an_unknown_architecture_needs_is_not_known() -> None:
    model = dense(unknown=("what its layers keep",))
    found = plan(model, deployment(kv_cache_dtype="turboquant_4bit_nc"), discover())
    needed = {item.id: item.needed for item in found.needs}

    assert needed["turboquant-hybrid"] is None
    assert needed["turboquant-workspace"] is True
    with pytest.raises(Failure) as raised:
        plan(replace(model, weights=None), deployment(), discover())
    assert [problem.what for problem in raised.value.problems] == ["cannot know", "unknown weights"]


@pytest.mark.parametrize(
    ("model", "said", "since", "why"),
    [
        (
            dense(),
            {"kv_cache_dtype": "turboquant_4bit_nc", "pipeline_parallel_size": 2},
            "0.28.0",
            "different block sizes",
        ),
        (dense(), {"kv_cache_dtype": "turboquant_k8v4", "card": "B200"}, "0.29.0", "no layout in common"),
        (hybrid(), {"pipeline_parallel_size": 14}, "0.20.0", "would have no attention layer"),
        (
            dense(attention=Attention(16, 8, 96)),
            {"kv_cache_dtype": "fp8", "card": "RTX 3090"},
            "0.24.0",
            "before Ada",
        ),
        (dense(dtype="float16"), {"kv_cache_dtype": "bfloat16"}, "0.33.0", "another float type"),
    ],
    ids=["stages", "B200", "no attention", "Ampere", "float type"],
)
def test_what_releases_refuse(model: Model, said: dict[str, Any], since: str, why: str) -> None:
    """As `test_agreement.py` finds it: refused from a release on, and not on the one before."""
    before = RELEASES[RELEASES.index(since) - 1]
    usual: dict[str, Any] = {"max_model_len": 2048, "gpu_memory_utilization": 0.9}
    causes = {
        release: [problem.cause for problem in plan(model, deployment(release, **usual, **said), discover()).problems]
        for release in (since, before)
        if said.get("kv_cache_dtype", "auto") in arithmetic_of(Version(release)).kv_cache_dtypes
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
