"""Whether a deployment fits, how much memory is missing, and which changes would make it fit."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from vpatch.core.catalogue import discover
from vpatch.errors import Failure
from vpatch.plan import GIB, Model
from vpatch.plan.defaults import gpu
from vpatch.plan.fit import SEQUENCES, advise, fit, remedies
from vpatch.plan.models import load
from vpatch.plan.verdict import plan

from tests.failures import problems_of
from tests.plan.examples import (
    AT_32K,
    FOUR_BITS,
    FP8_AT_262K,
    MOE,
    TURBOQUANT_AT_262K,
    Printed,
    dense,
    deployment,
    hybrid,
    weights_of,
)
from tests.plan.test_model_cards import planned


@pytest.mark.parametrize("row", [*AT_32K, FP8_AT_262K, TURBOQUANT_AT_262K], ids=lambda row: row.preset)
def test_the_rows_of_the_card_are_within_the_estimates_bounds(row: Printed) -> None:
    """The recorded weights are the card's; the rest of vLLM's share is estimated.

    Of the rows at 262K the card prints the weights of those at 32K, though TurboQuant's buffers are larger there.
    """
    model, said, _ = planned(row.preset)
    memory = fit(model, said).memory

    assert memory.kv_cache.least < row.kv_cache * GIB < memory.kv_cache.most
    assert abs(memory.kv_cache.likely / GIB - row.kv_cache) < (0.5 if row is TURBOQUANT_AT_262K else 0.2)
    assert memory.kv_cache.most - memory.kv_cache.least < 4 * GIB, "bounds so wide say nothing"


def test_a_card_too_small_has_missing_memory_and_remedies() -> None:
    model = hybrid(MOE, 66.5)
    found = plan(model, deployment(), discover())
    (problem,) = found.problems

    assert not found.fit.fits
    assert problem.what == "does not fit"
    assert "GiB are missing on a GPU: what comes before the KV cache takes" in problem.cause
    assert "would fit: --tensor-parallel-size 4; --gpu 'H100'" in problem.cause


def test_what_is_missing_is_what_a_request_takes_beyond_what_is_there() -> None:
    model = hybrid(gib=25.9)
    found = plan(model, deployment(max_model_len=262_144), discover())
    cause = found.problems[0].cause
    missing, need, have = map(float, re.findall(r"(\d+\.\d\d)(?= GiB are missing| GiB, | are there)", cause))

    assert need == round(found.fit.request / GIB, 2)
    assert have == round(found.fit.memory.kv_cache.likely / GIB, 2)
    assert missing == pytest.approx(need - have, abs=0.011)


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
def test_every_remedy_fits(model: Model, said: dict[str, Any]) -> None:
    wanted = deployment(**said)
    assert not fit(model, wanted).fits
    told = list(remedies(fit(model, wanted)))

    assert told
    for remedy in told:
        option, _, value = remedy.partition(" ")
        value = value or "True"
        field = option.removeprefix("--").replace("-", "_")
        change = {field: gpu(value.strip("'"))} if field == "gpu" else {field: type(getattr(wanted, field))(value)}
        assert fit(model, replace(wanted, **change)).fits, remedy


def test_nothing_fits_what_is_larger_than_everything() -> None:
    found = plan(dense(gib=5000.0), deployment(), discover())

    assert found.problems[0].cause.endswith("nothing that is known would fit")


@pytest.mark.parametrize("said", [{}, {"kv_cache_dtype": FOUR_BITS}, {"vllm": "0.33.0"}])
@pytest.mark.parametrize("requests", [1, 3])
def test_advice_is_the_bound(requests: int, said: dict[str, Any]) -> None:
    model, wanted = hybrid(), deployment(**said)
    advice = advise(fit(model, wanted), requests)

    def serves(count: int = 1, **changed: Any) -> bool:
        found = fit(model, replace(wanted, **changed))
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
    advice = advise(fit(model, deployment()))

    assert (advice.max_model_len, advice.max_num_seqs, advice.gpu_memory_utilization) == (None, None, None)


def test_a_given_size_of_the_cache_is_taken() -> None:
    model = hybrid()
    found = fit(model, deployment(kv_cache_memory_bytes=3 * GIB))

    assert found.memory.kv_cache.exact
    assert found.likely == found.least == found.most
    assert found.likely.blocks == 3 * GIB // found.layout.bytes_per_block[0]
    assert advise(fit(model, found.deployment)).gpu_memory_utilization is None


def test_the_longest_is_what_auto_takes() -> None:
    model = hybrid(gib=25.6)
    found = plan(model, deployment(max_model_len=262_144, longest=True), discover())

    assert 0 < found.deployment.max_model_len == found.fit.longest < 262_144
    assert found.fit.fits
    assert not found.problems


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_gpus_share_the_weights(stages: int) -> None:
    model = hybrid(MOE, 66.0)
    found = fit(model, deployment(tensor_parallel_size=4 // stages, pipeline_parallel_size=stages))

    size = next(item.size for item in found.memory.items if item.name == "weights")
    assert size.likely == pytest.approx(66.0 * GIB / 4, rel=1e-6)


def test_unknown_weights_are_refused() -> None:
    with pytest.raises(Failure, match=r"unknown weights: .*: give --weights-gib, or the folder"):
        plan(dense(weights=None), deployment(), discover())


def test_no_remedy_is_longer_than_the_model() -> None:
    model = dense()
    told = list(remedies(fit(model, deployment(max_model_len=1 << 40))))

    assert told[0] == "--max-model-len 40960"


@pytest.mark.parametrize(("model", "size"), [(hybrid(), 93 * GIB), (hybrid(MOE, 65.4), 6 * GIB)])
def test_a_given_size_of_the_cache_must_fit_the_card(model: Model, size: int) -> None:
    found = plan(model, deployment(kv_cache_memory_bytes=size), discover())
    (problem,) = found.problems

    assert found.fit.memory.left.likely < 0
    assert not found.fit.fits
    assert problem.what == "does not fit"
    assert "as asked for, and what comes before it are more than the card has; would fit: " in problem.cause
    assert plan(model, deployment(kv_cache_memory_bytes=size, card="H200"), discover()).fit.fits


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
    whole, text = (fit(model, deployment(language_model_only=only)) for only in (False, True))
    sizes = [found.memory.items[0].size.likely for found in (whole, text)]

    assert sizes[0] - sizes[1] == weights_of(model).vision > 0.8 * GIB


def test_a_batch_that_takes_too_much_may_be_smaller() -> None:
    model, wanted = hybrid(), deployment(max_num_batched_tokens=200_000)

    assert "--max-num-batched-tokens 8192" in list(remedies(fit(model, wanted)))


def test_the_needs_of_an_unknown_architecture_are_unknown() -> None:
    model = dense(unknown=("what its layers keep",))
    found = plan(model, deployment(kv_cache_dtype=FOUR_BITS), discover())
    needed = {item.id: item.needed for item in found.needs}

    assert needed["turboquant-hybrid"] is None
    assert needed["turboquant-workspace"] is True
    problems = problems_of(plan, replace(model, weights=None), deployment(), discover())
    assert [problem.what for problem in problems] == ["cannot know", "unknown weights"]
