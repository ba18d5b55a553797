"""turboquant-decode's kernel for new keys with the real vLLM, on the CPU: its numerics, and the caches that result.

Triton's interpreter runs the kernels. The reference is in float64.
"""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from tests.releases import tree_of
from tests.tiers import sampled
from tests.validation.cpu.comparison import ran
from tests.validation.cpu.decode_record import RELEASE, STORES, compiled

pytestmark = pytest.mark.deep

SIZES, DTYPES = (64, 128, 256), ("float16", "bfloat16")
CASES = [
    *((size, dtype, tokens, 3, "plain", True) for size, dtype, tokens in product(SIZES, DTYPES, (1, 7, 300))),
    *((size, dtype, 7, 2, scale, False) for size, dtype, scale in product(SIZES, DTYPES, ("huge", "tiny"))),
    (64, "bfloat16", 1024, 2, "plain", True),  # from 2048 keys on a program takes 32
    (128, "float16", 1025, 2, "plain", False),
]
"""Head size, type, tokens, KV heads, scale, and whether the keys are a slice of a larger tensor."""


@pytest.fixture(scope="module", params=sampled([RELEASE, "0.20.2"], 2))
def found(request: pytest.FixtureRequest) -> Any:
    return ran("probe_decode_store", request.param, tree_of(request.param), json.dumps(CASES))


def test_keys_are_as_close_to_float64_as_vllms(found: Any) -> None:
    wrong = [
        (case, one)
        for case, one in zip(CASES, found["errors"], strict=True)
        if "reason" in one
        or not one["ours zero"]
        or not all(ours <= 1.2 * stock + 1e-7 for ours, stock in zip(one["ours"], one["stock"], strict=True))
    ]

    assert wrong == []


def test_codes_differ_at_midpoints_only(found: Any) -> None:
    assert max(one["distance"] for one in found["errors"]) <= 1e-5
    assert sum(one["differing"] for one in found["errors"]) <= 100  # of 1.2 million
    for cache in found["caches"]:
        assert cache["differing"] <= cache["codes"] // 1000
        assert cache["steps"] <= 1
        assert cache["distance"] <= 1e-5
        assert cache["norm"] <= 1
        assert cache["elsewhere"] == 0


def test_values_are_stored_alike_in_their_own_type(found: Any) -> None:
    assert [cache["own values"] for cache in found["caches"]] == [0, 0, 0]


def test_keys_beyond_float32_give_zero_as_in_vllm(found: Any) -> None:
    assert found["overflowing"] == [0.0, 0.0]


def test_what_the_kernel_does_not_cover_is_refused_with_the_reason(found: Any) -> None:
    assert found["reasons"] == {
        "supported": None,
        "no tokens": "0 tokens of 8 KV heads",
        "head size 96": "keys of shape (4, 8, 96)",
        "float32": "keys of type torch.float32 with strides (1024, 128, 1)",
        "transposed": "keys of type torch.float16 with strides (1024, 1, 8)",
    }


def test_the_kernel_compiles_for_every_gpu_without_spills() -> None:
    for (kernel,) in compiled([case for case in STORES if case[2:] in ([128, 8], *([size, 65_536] for size in SIZES))]):
        assert kernel["shared"] <= 99 * 1024
        assert kernel["spilled"] == 0
