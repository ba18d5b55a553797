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

from tests.releases import pending, tree_of, with_own_turboquant
from tests.tiers import sampled
from tests.validation.cpu import boundary, models, upstream
from tests.validation.cpu.comparison import Comparison, compared, each, one_first, ran
from tests.validation.cpu.environment import interpreter
from tests.validation.cpu.probe_hybrid import ALIGNED, DTYPES, HYBRIDS, SIZED, WHOLE
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


release = each(one_first("0.20.2", sampled(with_own_turboquant(pending("turboquant-hybrid"))[::-1], 2)))


@pytest.fixture(scope="module")
def seen(release: str, folder: str) -> Comparison:
    return compared("probe_hybrid", release, ("turboquant-hybrid",), folder)


@pytest.fixture(scope="module")
def fixed(release: str, folder: str) -> Any:
    """What 0.21.0 makes of the same, which has upstream's change."""
    return ran("probe_hybrid", release, tree_of("0.21.0"), folder)


@pytest.mark.parametrize("name", sorted(REFUSED_BEFORE))
def test_stock_refuses_hybrids(seen: Comparison, name: str) -> None:
    assert seen.stock["sized"][name]["error"] == REFUSED


@pytest.mark.parametrize("name", BLOCK_SIZES)
def test_block_size(seen: Comparison, name: str) -> None:
    found = seen.patched["sized"][name]

    assert found["block_size"] == BLOCK_SIZES[name]
    assert found["skip_layers"] == []
    assert "error" not in found


@pytest.mark.parametrize("name", sorted({f"{model} {dtype}" for model in HYBRIDS for dtype in DTYPES} | MIXED.keys()))
def test_all_kv_cache_groups_have_one_page_size(seen: Comparison, name: str) -> None:
    found = seen.patched["sized"][name]

    assert len({page for _, _, page, _, _ in found["groups"]}) == 1
    assert sum(groups * layers for groups, *_, layers in found["groups"]) == sum(count for count, *_ in found["layers"])
    assert found["blocks"] > 0


@pytest.mark.parametrize(("name", "block_size", "mamba", "turboquant"), [("35B past", 2096, 2_146_304, 1_098_304)])
def test_without_the_packed_page_size_the_groups_do_not_unify(
    seen: Comparison, name: str, block_size: int, mamba: int, turboquant: int
) -> None:
    stock, patched = seen.stock["sized"][name], seen.patched["sized"][name]

    assert stock["block_size"] == block_size
    assert stock["layers"] == [[30, "MambaSpec", mamba], [10, "TQFullAttentionSpec", turboquant]]
    assert stock["error"] == NOT_UNIFIED
    assert patched["layers"] == [[30, "MambaSpec", mamba], [10, "TQFullAttentionSpec", mamba]]
    assert "error" not in patched


@pytest.mark.parametrize("name", sorted(PAST))
def test_with_the_packed_page_size_the_groups_unify(seen: Comparison, name: str) -> None:
    assert seen.stock["sized"][name]["error"] == NOT_UNIFIED
    assert "error" not in seen.patched["sized"][name]


@pytest.mark.parametrize("name", MIXED)
def test_skipped_layers_and_turboquant_share_a_multiple_of_both_pages(seen: Comparison, name: str) -> None:
    found = seen.patched["sized"][name]

    assert found["padded"] == found["block_size"] * MIXED[name]
    assert [kind for _, kind, *_ in found["groups"]] == ["FullAttentionSpec", "MambaSpec", "TQFullAttentionSpec"]


@pytest.mark.parametrize("name", ALIGNED)
def test_pages_are_those_of_one_rank(seen: Comparison, name: str) -> None:
    stock, patched = (found["aligned"][name] for found in seen)
    model, ranks = name.split(" TP")

    assert stock["error"] == REFUSED
    if model != "35B":  # with two heads: one for each of two ranks, and of four
        assert patched["padded"] * int(ranks) == seen.patched["aligned"][f"{model} TP1"]["padded"]


def test_align_mode_requires_a_batch_of_one_block(seen: Comparison) -> None:
    less, enough = (seen.patched["sized"][f"35B align {tokens}"] for tokens in (4095, 4096))
    limit = "In Mamba cache align mode, block_size (4096) must be <= max_num_batched_tokens (4095)."

    assert less["error"] == ["AssertionError", limit]
    assert "error" not in enough


@pytest.mark.parametrize("model", HYBRIDS)
def test_attention_layers_are_logged(seen: Comparison, model: str) -> None:
    line = f"TQ hybrid: full-attention layers {list(ATTENTION[model])}"

    assert line in seen.patched["sized"][f"{model} 4bit_nc"]["log"]
    assert line not in seen.stock["sized"][f"{model} 4bit_nc"]["log"]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("part", "name"), [*(("sized", name) for name in SIZED), *(("aligned", name) for name in ALIGNED)]
)
def test_sizes_are_those_of_upstream(seen: Comparison, fixed: Any, part: str, name: str) -> None:
    patched, upstreams = (_without_a_later_removed_line(found[part][name]) for found in (seen.patched, fixed))

    assert patched == upstreams


@pytest.mark.parametrize("name", sorted(AS_BEFORE))
def test_other_models_have_the_sizes_of_stock(seen: Comparison, name: str) -> None:
    assert seen.patched["sized"][name] == seen.stock["sized"][name]
    assert "error" not in seen.stock["sized"][name]


@pytest.mark.parametrize("name", WHOLE)
def test_other_models_have_the_whole_config_of_stock(seen: Comparison, name: str) -> None:
    stock = seen.stock["whole"][name]

    assert "error" not in stock
    assert seen.patched["whole"][name] == stock


def test_whole_configs_of_models_differ(seen: Comparison) -> None:
    found = seen.stock["whole"]
    skipped = found["dense skips"]["config"]["cache_config"]["kv_cache_dtype_skip_layers"]

    assert skipped == ["0", "1", "5", "12", "26", "27"]
    assert len({whole["hash"] for whole in found.values()}) == len(WHOLE)


@pytest.mark.parametrize("name", boundary.CASES)
def test_stock_expects_the_number_of_layers(seen: Comparison, name: str) -> None:
    assert seen.stock["boundary"][name]["error"][0] in ("AttributeError", "TypeError")


@pytest.mark.deep
@pytest.mark.parametrize("name", boundary.CASES)
def test_boundary_layers_are_those_of_upstream(seen: Comparison, fixed: Any, name: str) -> None:
    patched, upstreams = (_with_the_common_message(found["boundary"][name]) for found in (seen.patched, fixed))

    assert patched == upstreams


def test_boundary_layers(seen: Comparison) -> None:
    found = seen.patched["boundary"]

    assert found["dense 36"]["skipped"] == ["0", "1", "34", "35"]
    assert found["dense 3"]["skipped"] == ["0", "2"]
    assert found["dense 10, n=0"]["skipped"] == found["dense 0"]["skipped"] == []
    assert found["dense 10, n=100"]["skipped"] == [str(index) for index in range(10)]
    assert found["layer_types"] == {
        "skipped": [],
        "attention": [3, 7, 11],
        "log": ["TQ hybrid: full-attention layers [3, 7, 11]"],
    }
    assert found["layers_block_type"]["attention"] == [1, 3]
    assert found["attn_type_list"]["attention"] == [2, 4]
    assert found["text config first"]["attention"] == [1]
    assert NO_ATTENTION in found["no list"]["error"][1]


@pytest.mark.deep
def test_upstreams_own_tests(release: str, tmp_path: Path) -> None:
    """Tests that pass on 0.21.0 pass on the patched tree, with this overlay alone and with all."""
    file = upstream.fetch("0.21.0", UPSTREAM_TESTS)
    trees = (tree_of(release), patched_tree(release, "turboquant-hybrid"), tree_of("0.21.0"), patched_tree(release))

    stock, *others = upstream.beside(interpreter("0.21.0"), file, trees, tmp_path)

    assert stock == (Counter(passed=97, failure=7, skipped=ON_GPU), FAIL_BEFORE)
    assert others == [(Counter(passed=104, skipped=ON_GPU), set())] * 3


def _without_a_later_removed_line(found: dict[str, Any]) -> dict[str, Any]:
    return found | {"log": [line for line in found["log"] if not line.startswith("TQ: skipping layers")]}


def _with_the_common_message(found: dict[str, Any]) -> dict[str, Any]:
    if "error" not in found:
        return found
    kind, message = found["error"]
    assert NO_ATTENTION in message
    return found | {"error": kind}
