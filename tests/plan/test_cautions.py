"""What a plan warns of."""

from __future__ import annotations

from typing import Any

import pytest
from vpatch.core.catalogue import discover
from vpatch.plan import GIB
from vpatch.plan.architectures import Model, Weights
from vpatch.plan.deployment import Deployment
from vpatch.plan.fit import fit
from vpatch.plan.planner import plan

from tests.plan.examples import MOE, dense, deployment, hybrid
from tests.plan.test_seeds import planned


def weights(model: Model) -> Weights:
    assert model.weights
    return model.weights


def names(model: Model, said: Deployment, **more: Any) -> set[str]:
    return {caution.name for caution in plan(model, said, discover(), **more).cautions}


def test_cautions() -> None:
    turboquant: dict[str, Any] = {"kv_cache_dtype": "turboquant_4bit_nc"}
    head = planned("qwen3.6-35b-5090-32k-fp8head")[0].head

    assert names(hybrid(), deployment(kv_cache_dtype="fp8")) == {"fp8-kv-quality"}
    assert names(hybrid(head=head), deployment()) == {"fp8-head-structured-output"}
    assert "turboquant-speculation" in names(hybrid(), deployment(**turboquant, speculative_tokens=2))
    found = plan(hybrid(), deployment(**turboquant, speculative_tokens=2), discover()).cautions
    (speculation,) = (caution.because for caution in found if caution.name == "turboquant-speculation")
    assert "--enforce-eager --no-async-scheduling" in speculation
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
