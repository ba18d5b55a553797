"""turboquant-decode's kernels with the real vLLM, on the CPU: their numerics, what they refuse, how they compile.

Triton's interpreter runs the kernels: those of attention on caches that vLLM's own kernel wrote, and that for new keys.
The reference is in float64.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tests.releases import tree_of
from tests.tiers import sampled, whole
from tests.validation.cpu import upstream
from tests.validation.cpu.comparison import ran
from tests.validation.cpu.decode_cases import BITS, Case
from tests.validation.cpu.decode_record import RELEASE, STORES, compiled, kernels
from tests.validation.cpu.environment import interpreter
from tests.validation.cpu.trees import patched_tree

pytestmark = pytest.mark.deep

SIZES, GROUPS, WINDOWS = (64, 128, 256), range(1, 17), range(1, 10)

# Rounding of the output, to bfloat16 and to fp16: half of the last place, spread evenly, gives 2^-9 / sqrt(3) = 0.0011
# and 0.00014 at the lower end of a binade. The rest is that of queries, keys and weights in fp16.
BOUNDS = {"bfloat16": 0.0025, "float16": 0.0006}

SIZED = list(product(BITS, SIZES))
FIRST = [
    *(
        Case(
            preset,
            size,
            group=(4, 1, 7, 8, 3, 2, 16, 5, 6, 12, 2, 1)[at],
            window=(1, 8, 2, 1, 3, 5, 1, 4, 9, 1, 7, 6)[at],
            each=at % 4 != 3,
            missing=(0, 3, 0, 0, 1, 0, 0, 0, 0, 0, 6, 0)[at],
            heads_first=at % 2 == 0,
            page=(16, 1056, 32, 2096, 64, 16, 48, 128)[at % 8],
            kv_heads=2 if at % 5 == 4 else 1,
            splits=(1, None, 2)[at % 3],
        )
        for at, (preset, size) in enumerate(SIZED)
    ),
    Case(dtype="float16", lengths=(0, 130), splits=1),
    Case("k8v4", 64, 2, e4b15=True),
    *(Case(preset, 64, 2, page=32, lengths=(0, 40), stock=True) for preset in BITS),
]
"""Every preset with every head size; groups, windows, pages and layouts in turn."""

MORE = [
    *(
        # The layout alternates, so that each group and each window meet both.
        Case(preset, size, group, window, heads_first=(group + window + at) % 2 == 0, page=(16, 1056)[at % 2], splits=1)
        for at, (preset, size) in enumerate(SIZED)
        for group, window in ((1, 4), (3, 1), (16, 1))
    ),
    *(Case(group=group, window=1 + 2 * (group % 2), splits=2) for group in GROUPS),
    *(
        Case(group=4, window=window, heads_first=heads, each=heads != (window < 5))
        for window, heads in product(WINDOWS, (True, False))
    ),
    *(Case(page=page, heads_first=heads) for page, heads in product((16, 48, 64, 1056, 2096, 4096), (True, False))),
    *(Case(preset, size, 2, 2, stock=True, lengths=(0, 70)) for preset, size in SIZED),
    Case(lengths=(0, 0)),
    Case(lengths=(5, 3, 700), window=8, splits=4),
    *(Case(group=16, window=8, lengths=(140, 150), missing=missing, splits=3) for missing in (1, 4, 7)),
]
"""Every group and every window."""


@pytest.mark.parametrize(
    ("release", "cases"),
    [
        (RELEASE, [*sampled(FIRST, 2), *sampled(MORE, 14)]),
        *((release, sampled(FIRST, 4)) for release in sampled(("0.20.2", "0.33.0"), 2)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_attention_is_that_of_float64(release: str, cases: Sequence[Case]) -> None:
    """Within bounds, and of those of vLLM's kernel where that ran."""
    heads_first = Version(release) >= Version("0.26")  # before, no cache is stored so
    cases = [case if heads_first else replace(case, heads_first=False) for case in cases]
    found: Any = ran("probe_decode", release, tree_of(release), json.dumps([asdict(case) for case in cases]))

    for case, one in zip(cases, found, strict=True):
        assert "reason" not in one, case
        assert one["zero"], case
        assert one["ours"] <= min(BOUNDS[case.dtype], 1.2 * one.get("stock", 1.0)), case


def test_the_first_cases_have_every_preset_size_window_and_layout() -> None:
    assert {(case.preset, case.size) for case in FIRST} == set(SIZED)
    assert {case.window for case in FIRST} == set(WINDOWS)
    assert {(case.preset, case.heads_first) for case in FIRST} == set(product(BITS, (True, False)))


def test_inline_ptx_decodes_like_the_plain_kernels() -> None:
    found = ran("probe_decode_texts", RELEASE, tree_of(RELEASE))

    assert found.pop("error") == "the codebook is not symmetric"
    assert found.pop("kept")
    assert len(found) == 8
    assert not any(found.values())


@whole
def test_the_kernels_compile_for_every_gpu() -> None:
    """One shape: the others are recorded by `python -m tests.validation.cpu.decode_record`, which takes minutes."""
    shape = (128, 8, 4, 1, 32)
    for found in compiled([*kernels(BITS, [shape]), *kernels(["4bit_nc"], [shape], ptx=False)]):
        assert max(kernel["shared"] for kernel in found) <= 99 * 1024


@pytest.mark.parametrize("release", sampled(["0.26.0", "0.21.0", "0.20.2"], 3))
def test_upstreams_own_tests_pass(release: str, tmp_path: Path) -> None:
    """Those that need a GPU are skipped here, and run in the GPU scenario `fast-upstream`."""
    file = upstream.fetch(release, "tests/quantization/test_turboquant.py")
    trees = (tree_of(release), patched_tree(release, "turboquant-decode"))

    before, after = upstream.beside(interpreter(release), file, trees, tmp_path)

    assert before == after
    assert before[0]["passed"] >= 100
    assert not before[1]


DTYPES = ("float16", "bfloat16")
KEYS = [
    *((size, dtype, tokens, 3, "plain", True) for size, dtype, tokens in product(SIZES, DTYPES, (1, 7, 300))),
    *((size, dtype, 7, 2, scale, False) for size, dtype, scale in product(SIZES, DTYPES, ("huge", "tiny"))),
    (64, "bfloat16", 1024, 2, "plain", True),  # from 2048 keys on a program takes 32
    (128, "float16", 1025, 2, "plain", False),
]
"""Head size, type, tokens, KV heads, scale, and whether the keys are a slice of a larger tensor."""


@pytest.fixture(scope="module", params=sampled([RELEASE, "0.20.2"], 2))
def found(request: pytest.FixtureRequest) -> Any:
    return ran("probe_decode_store", request.param, tree_of(request.param), json.dumps(KEYS))


def test_keys_are_as_close_to_float64_as_vllms(found: Any) -> None:
    for case, one in zip(KEYS, found["errors"], strict=True):
        assert "reason" not in one, case
        assert one["ours zero"], case
        assert all(ours <= 1.2 * stock + 1e-7 for ours, stock in zip(one["ours"], one["stock"], strict=True)), case


def test_codes_differ_at_midpoints_only(found: Any) -> None:
    assert max(one["distance"] for one in found["errors"]) <= 1e-5
    assert sum(one["differing"] for one in found["errors"]) <= 100  # of 1.2 million


def test_keys_beyond_float32_give_zero_as_in_vllm(found: Any) -> None:
    assert found["overflowing"] == [0.0, 0.0]


def test_what_the_kernel_for_new_keys_does_not_cover_is_refused(found: Any) -> None:
    assert found["reasons"] == {
        "supported": None,
        "no tokens": "0 tokens of 8 KV heads",
        "head size 96": "keys of shape (4, 8, 96)",
        "float32": "keys of type torch.float32 with strides (1024, 128, 1)",
        "transposed": "keys of type torch.float16 with strides (1024, 1, 8)",
    }


def test_the_kernel_for_new_keys_compiles_for_every_gpu_without_spills() -> None:
    for (kernel,) in compiled([case for case in STORES if case[2:] in ([128, 8], *([size, 65_536] for size in SIZES))]):
        assert kernel["shared"] <= 99 * 1024
        assert kernel["spilled"] == 0
