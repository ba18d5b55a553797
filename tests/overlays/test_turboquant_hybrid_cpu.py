"""turboquant-hybrid in the real vLLM, on the CPU: its configs, its layers' sizes, its KV cache groups.

Each test compares 0.20 as published, where it fails, with the same and the overlay; some with 0.21.0, which has
upstream's change. Layers are built on the meta device of a simulated GPU, so nothing is computed.
"""

from __future__ import annotations

from collections import Counter
from math import lcm
from pathlib import Path
from typing import Any

import pytest

from tests.releases import tree_of
from tests.tiers import sampled
from tests.validation.cpu import models, upstream
from tests.validation.cpu.comparison import Comparison, beside, each, ran
from tests.validation.cpu.environment import interpreter
from tests.validation.cpu.probe_hybrid import ALIGNED, BOUNDARY, DTYPES, HYBRIDS, SIZED, WHOLE
from tests.validation.cpu.trees import patched_tree

REFUSED = [
    "NotImplementedError",
    "TurboQuant KV cache is not supported for hybrid (attention + Mamba) models. "
    "Boundary layer protection requires uniform attention layers.",
]
NOT_UNIFIED = [
    "NotImplementedError",
    "The page size of the layer is not divisible by the maximum page size. Cannot unify by adjusting block_size.",
]
NO_ATTENTION = "requires identifiable full-attention layers"

AS_BEFORE = {name for name, (_, options) in SIZED.items() if "then" not in options} & {
    *(f"{model} {dtype}" for model in models.CONFIGS for dtype in ("auto", "fp8")),
    *(name for name in SIZED if name.startswith("dense")),
}
PAST = {name for name, (_, options) in SIZED.items() if "then" in options}
REFUSED_BEFORE = SIZED.keys() - AS_BEFORE - PAST

BLOCK_SIZES = {
    "35B 4bit_nc": 4096,
    "35B k8v4": 2768,
    "35B k3v4_nc": 4672,
    "35B 3bit_nc": 5424,
    "35B MTP": 4192,
    "27B 4bit_nc": 3072,
    "27B k8v4": 2080,
    "27B k3v4_nc": 3488,
    "27B 3bit_nc": 4064,
    "27B MTP": 3120,
}
ATTENTION = {"35B": range(3, 40, 4), "27B": range(3, 64, 4), "Jamba": range(4, 32, 8)}

# A skipped layer's page has 2 bytes a value; TurboQuant's slots have 262 (4bit_nc) or 388 (k8v4) bytes a head.
MIXED = {
    "35B skips 3": lcm(2 * 262, 2 * 2 * 256 * 2),
    "35B skips 39": lcm(2 * 262, 2 * 2 * 256 * 2),
    "27B k8v4 skips 3": lcm(4 * 388, 2 * 4 * 256 * 2),
}

UPSTREAM_TESTS = "tests/quantization/test_turboquant.py"
ON_GPU = 17
FAIL_BEFORE = {
    "test_attn_type_list_minimax",
    "test_boundary_skip_layers_basic",
    "test_boundary_skip_layers_cap_at_half",
    "test_boundary_skip_layers_small_model",
    "test_layer_types_full_attention",
    "test_layers_block_type_jamba",
    "test_no_hybrid_hints_returns_empty",
}

pytestmark = pytest.mark.deep
release = each(sampled(("0.20.2", "0.20.0"), 2))
seen = beside("probe_hybrid", "turboquant-hybrid", models=True)


@pytest.fixture(scope="module")
def fixed(release: str, folder: str) -> Any:
    """What 0.21.0 makes of the same, which has upstream's change."""
    return ran("probe_hybrid", release, tree_of("0.21.0"), folder)


def common(found: dict[str, Any]) -> dict[str, Any]:
    """Return a finding without a line of the log that upstream removed later, and without the words of an error."""
    log = [line for line in found["log"] if not line.startswith("TQ: skipping layers")]
    kind, message = found.get("error", ("", ""))
    return found | {"log": log, "error": kind, NO_ATTENTION: NO_ATTENTION in message}


@pytest.mark.parametrize("part", ["sized", "aligned", "boundary"])
def test_sizes_and_boundary_layers_are_those_of_upstream(seen: Comparison, fixed: Any, part: str) -> None:
    assert seen.patched[part].keys() == fixed[part].keys()
    for name, found in seen.patched[part].items():
        assert common(found) == common(fixed[part][name]), name
        # A boundary's refusal has another beginning than upstream's; sizes have the same errors.
        assert part == "boundary" or found.get("error") == fixed[part][name].get("error"), name


def test_stock_refuses_hybrids_and_has_no_other_attention(seen: Comparison) -> None:
    for name in sorted(REFUSED_BEFORE):
        assert seen.stock["sized"][name]["error"] == REFUSED, name
    for name in ALIGNED:
        assert seen.stock["aligned"][name]["error"] == REFUSED, name
    for name in BOUNDARY:
        assert seen.stock["boundary"][name]["error"][0] in ("AttributeError", "TypeError"), name


def test_block_sizes_and_pages(seen: Comparison) -> None:
    sized, aligned = seen.patched["sized"], seen.patched["aligned"]
    for name, block_size in BLOCK_SIZES.items():
        assert "error" not in sized[name]
        assert (sized[name]["block_size"], sized[name]["skip_layers"]) == (block_size, []), name
    for name in {f"{model} {dtype}" for model in HYBRIDS for dtype in DTYPES} | MIXED.keys():
        groups = sized[name]["groups"]
        assert len({page for _, _, page, _, _ in groups}) == 1, name
        assert sum(count * layers for count, *_, layers in groups) == sum(count for count, *_ in sized[name]["layers"])
        assert sized[name]["blocks"] > 0
    for name, both in MIXED.items():  # skipped layers and TurboQuant share a multiple of both pages
        assert sized[name]["padded"] == sized[name]["block_size"] * both
        kinds = [kind for _, kind, *_ in sized[name]["groups"]]
        assert kinds == ["FullAttentionSpec", "MambaSpec", "TQFullAttentionSpec"]
    for name, found in aligned.items():
        model, ranks = name.split(" TP")
        if model != "35B":  # with two heads: one for each of two ranks, and of four
            assert found["padded"] * int(ranks) == aligned[f"{model} TP1"]["padded"]


def test_without_the_packed_page_size_the_groups_do_not_unify(seen: Comparison) -> None:
    stock, patched = (found["sized"]["35B past"] for found in seen)

    assert stock["block_size"] == 2096
    assert stock["layers"] == [[30, "MambaSpec", 2_146_304], [10, "TQFullAttentionSpec", 1_098_304]]
    assert patched["layers"] == [[30, "MambaSpec", 2_146_304], [10, "TQFullAttentionSpec", 2_146_304]]
    for name in PAST:
        assert seen.stock["sized"][name]["error"] == NOT_UNIFIED, name
        assert "error" not in seen.patched["sized"][name], name


def test_align_mode_requires_a_batch_of_one_block(seen: Comparison) -> None:
    less, enough = (seen.patched["sized"][f"35B align {tokens}"] for tokens in (4095, 4096))
    limit = "In Mamba cache align mode, block_size (4096) must be <= max_num_batched_tokens (4095)."

    assert less["error"] == ["AssertionError", limit]
    assert "error" not in enough


def test_other_models_have_the_sizes_and_the_whole_config_of_stock(seen: Comparison) -> None:
    stock, patched = seen
    for part, names in (("sized", AS_BEFORE), ("whole", WHOLE)):
        for name in names:
            assert "error" not in stock[part][name], name
            assert patched[part][name] == stock[part][name], name
    skipped = stock["whole"]["dense skips"]["config"]["cache_config"]["kv_cache_dtype_skip_layers"]
    assert skipped == ["0", "1", "5", "12", "26", "27"]
    assert len({whole["hash"] for whole in stock["whole"].values()}) == len(WHOLE)


def test_attention_and_boundary_layers(seen: Comparison) -> None:
    for model in HYBRIDS:
        assert (
            f"TQ hybrid: full-attention layers {list(ATTENTION[model])}"
            in seen.patched["sized"][f"{model} 4bit_nc"]["log"]
        )
    found = seen.patched["boundary"]
    skipped = {name: " ".join(case["skipped"]) for name, case in found.items() if "skipped" in case}
    attention = {name: case.get("attention") for name, case in found.items()}

    assert (skipped["dense 36"], skipped["dense 3"]) == ("0 1 34 35", "0 2")
    assert skipped["dense 10, n=0"] == skipped["dense 0"] == skipped["layer_types"] == ""
    assert skipped["dense 10, n=100"] == "0 1 2 3 4 5 6 7 8 9"
    assert (attention["layer_types"], attention["layers_block_type"]) == ([3, 7, 11], [1, 3])
    assert (attention["attn_type_list"], attention["text config first"]) == ([2, 4], [1])
    assert NO_ATTENTION in found["no list"]["error"][1]


def test_upstreams_own_tests(release: str, tmp_path: Path) -> None:
    """Tests that pass on 0.21.0 pass on the patched tree, with this overlay alone and with all."""
    file = upstream.fetch("0.21.0", UPSTREAM_TESTS)
    trees = (tree_of(release), patched_tree(release, "turboquant-hybrid"), tree_of("0.21.0"), patched_tree(release))

    stock, *others = upstream.beside(interpreter("0.21.0"), file, trees, tmp_path)

    assert stock == (Counter(passed=97, failure=7, skipped=ON_GPU), FAIL_BEFORE)
    assert others == [(Counter(passed=104, skipped=ON_GPU), set())] * 3
