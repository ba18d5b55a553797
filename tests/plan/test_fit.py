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
from vpatch.plan.fit import SEQUENCES, advise, fit, hardware, remedies
from vpatch.plan.verdict import plan

from tests.failures import problems_of
from tests.plan.examples import FOUR_BITS, MOE, dense, deployment, hybrid

BIG = hybrid(MOE, 66.5)


@pytest.mark.parametrize(
    ("model", "options", "causes"),
    [
        (
            BIG,
            {},
            (
                "GiB are missing on a GPU: what comes before the KV cache",
                "; no option that plan knows makes it fit this GPU; on more or larger GPUs: ",
                ": --tensor-parallel-size 4; --gpu 'H100'",
            ),
        ),
        (dense(gib=5000.0), {}, ("; no option that plan knows makes it fit this GPU",)),
        (hybrid(), {"kv_cache_memory_bytes": 93 * GIB}, ("as asked for, and what comes before it are more than the",)),
        (
            hybrid(MOE, 65.4),
            {"kv_cache_memory_bytes": 6 * GIB},
            ("what comes before it are more", "; on more or larger GPUs: "),
        ),
    ],
)
def test_what_does_not_fit(model: Model, options: dict[str, Any], causes: tuple[str, ...]) -> None:
    found = plan(model, deployment(**options), discover())
    (problem,) = found.problems

    assert not found.fit.fits
    assert problem.what == "does not fit"
    assert all(cause in problem.reason for cause in causes), problem.reason


def test_what_is_missing_is_what_a_request_takes_beyond_what_is_there() -> None:
    found = plan(hybrid(gib=25.9), deployment(max_model_len=262_144), discover())
    cause = found.problems[0].cause
    missing, need, have = map(float, re.findall(r"(\d+\.\d\d)(?= GiB are missing| GiB, | are there)", cause))

    assert need == round(found.fit.request / GIB, 2)
    assert have == round(found.fit.memory.kv_cache.likely / GIB, 2)
    assert missing == pytest.approx(need - have, abs=0.011)


@pytest.mark.parametrize(
    ("model", "options", "one"),
    [
        (BIG, {}, "--tensor-parallel-size 4"),
        (hybrid(gib=25.9), {"max_model_len": 262_144}, "--max-model-len"),
        (dense(gib=24.0), {"max_num_seqs": 512, "max_model_len": 40_960}, "--max-model-len"),
        (hybrid(gib=24.0), {"max_num_seqs": 256}, "--max-num-seqs 32"),
        (hybrid(gib=25.5), {"max_num_seqs": 256, "max_model_len": 262_144}, "--max-num-seqs 32 --max-model-len "),
        (hybrid(), {"gpu_memory_utilization": 0.76}, "--gpu-memory-utilization 0.92"),
        (hybrid(), {"max_num_batched_tokens": 200_000}, "--max-num-batched-tokens 8192"),
        (dense(), {"max_model_len": 1 << 40}, "--max-model-len 40960"),  # no longer than the model
    ],
    ids=["too large", "too long", "dense", "requests", "both", "share too small", "batch too large", "absurd"],
)
def test_every_remedy_fits(model: Model, options: dict[str, Any], one: str) -> None:
    wanted = deployment(**options)
    found = [*remedies(fit(model, wanted)), *hardware(fit(model, wanted))]

    assert not fit(model, wanted).fits
    assert any(remedy.startswith(one) for remedy in found), found
    for remedy in found:
        change: dict[str, Any] = {}
        for option, value in re.findall(r"--(\S+)(?: (?!--)('.*'|\S+))?", remedy):
            field = option.replace("-", "_")
            of_field = gpu if field == "gpu" else type(getattr(wanted, field))
            change[field] = of_field(value.strip("'") or "True")
        changed = fit(model, replace(wanted, **change))
        assert changed.fits, remedy
        if [*change] == ["max_num_seqs"]:  # at the worst of the bounds, too, where any number does
            sure = fit(model, replace(wanted, max_num_seqs=4))
            assert (changed.surely, changed.outgrows) == (sure.surely, sure.outgrows), remedy


@pytest.mark.parametrize("options", [{}, {"kv_cache_dtype": FOUR_BITS}, {"vllm": "0.33.0"}])
@pytest.mark.parametrize("requests", [1, 3])
def test_advice_is_the_bound(requests: int, options: dict[str, Any]) -> None:
    model, wanted = hybrid(), deployment(**options)
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
    advice = advise(fit(dense(gib=100.0), deployment()))

    assert (advice.max_model_len, advice.max_num_seqs, advice.gpu_memory_utilization) == (None, None, None)


def test_a_given_size_of_the_cache_is_taken() -> None:
    found = fit(hybrid(), deployment(kv_cache_memory_bytes=3 * GIB))

    assert found.memory.kv_cache.exact
    assert found.likely == found.least == found.most
    assert found.likely.blocks == 3 * GIB // found.layout.bytes_per_block[0]
    assert advise(found).gpu_memory_utilization is None
    assert fit(hybrid(), deployment(kv_cache_memory_bytes=93 * GIB, card="H200")).fits


def test_the_longest_is_what_auto_takes() -> None:
    found = plan(hybrid(gib=25.6), deployment(max_model_len=262_144, longest=True), discover())

    assert 0 < found.deployment.max_model_len == found.fit.longest < 262_144
    assert found.fit.fits
    assert not found.problems


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_gpus_share_the_weights(stages: int) -> None:
    found = fit(hybrid(MOE, 66.0), deployment(tensor_parallel_size=4 // stages, pipeline_parallel_size=stages))

    size = next(item.size for item in found.memory.items if item.name == "weights")
    assert size.likely == pytest.approx(66.0 * GIB / 4, rel=1e-6)


def test_requests_that_are_not_served_are_a_problem() -> None:
    few, many = (plan(hybrid(), deployment(), discover(), requests=count) for count in (2, 100))

    assert not few.problems
    assert [problem.what for problem in many.problems] == ["does not serve as many"]


def test_a_checkpoint_that_brings_scales_for_its_cache_gets_one_in_fp8() -> None:
    model = hybrid(kv_cache_dtype="fp8")

    assert plan(model, deployment(), discover()).deployment.kv_cache_dtype == "fp8"
    assert plan(model, deployment(kv_cache_dtype="bfloat16"), discover()).deployment.kv_cache_dtype == "bfloat16"


def test_what_is_unknown() -> None:
    with pytest.raises(Failure, match=r"unknown weights: .*: give --weights-gib, or the folder"):
        plan(dense(weights=None), deployment(), discover())

    model = dense(unknown=("what its layers keep",))
    needed = {one.id: one.needed for one in plan(model, deployment(kv_cache_dtype=FOUR_BITS), discover()).needs}
    assert (needed["turboquant-hybrid"], needed["turboquant-workspace"]) == (None, True)
    problems = problems_of(plan, replace(model, weights=None), deployment(), discover())
    assert [problem.what for problem in problems] == ["cannot know", "unknown weights"]
