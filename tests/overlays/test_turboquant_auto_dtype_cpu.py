"""The KV cache tensors that the real V1 runner, here without a device, makes with turboquant-auto-dtype."""

from __future__ import annotations

from typing import Any

import pytest

from tests.releases import tree_of
from tests.validation.cpu.comparison import Comparison, compared, each, ran
from tests.validation.cpu.probe_auto_dtype import DENSE, HYBRID, OTHERS

UNKNOWN = "Unknown TurboQuant cache dtype: 'auto'."

# Bytes of one token in one head, by head size: 256 in the hybrid models, 128 in the dense one.
SLOTS = {
    "hybrid": {"k8v4": 388, "4bit_nc": 262, "k3v4_nc": 230, "3bit_nc": 198},
    "dense": {"k8v4": 196, "4bit_nc": 134, "k3v4_nc": 118, "3bit_nc": 102},
}
HEADS = {"35B": 2, "27B": 4, "dense": 8}

# Each release with the nearest one that lacks the defect and has the same shapes.
pytestmark = pytest.mark.deep
pair = each([("0.26.0", "0.27.1"), ("0.25.1", "0.24.0")])


@pytest.fixture(scope="module")
def seen(pair: tuple[str, str], folder: str) -> Comparison:
    return compared("probe_auto_dtype", pair[0], ("turboquant-auto-dtype",), folder)


@pytest.fixture(scope="module")
def whole(pair: tuple[str, str], folder: str) -> dict[str, Any]:
    return ran("probe_auto_dtype", pair[0], tree_of(pair[1]), folder)


@pytest.mark.parametrize("name", [*map(" ".join, (*HYBRID, *DENSE))])
def test_stock_passes_auto_for_turboquant(seen: Comparison, name: str) -> None:
    kind, message = seen.stock[name]["error"]

    assert kind == "ValueError"
    assert message.startswith(UNKNOWN)


@pytest.mark.parametrize(("model", "dtype"), HYBRID)
def test_tensors_of_a_hybrid_model_are_those_of_a_release_without_the_defect(
    seen: Comparison, whole: dict[str, Any], model: str, dtype: str
) -> None:
    tensors, slot = seen.patched[f"{model} {dtype}"]["tensors"], SLOTS["hybrid"][dtype.removeprefix("turboquant_")]

    assert tensors == whole[f"{model} {dtype}"]["tensors"]
    assert tensors
    for kind, shape, _, offset in tensors.values():
        assert (kind, shape[-1], offset) == ("torch.uint8", slot, 0)
        assert HEADS[model] in shape[1:3]


@pytest.mark.parametrize(("model", "dtype"), DENSE)
def test_tensors_of_a_dense_model(seen: Comparison, model: str, dtype: str) -> None:
    """Skipped layers have tensors of the model's dtype."""
    tensors, slot = seen.patched[f"{model} {dtype}"]["tensors"], SLOTS["dense"][dtype.removeprefix("turboquant_")]
    skipped = {f"model.layers.{index}.self_attn.attn" for index in (0, 1, 26, 27)}

    assert len(tensors) == 28
    for name, (kind, shape, _, offset) in tensors.items():
        assert offset == 0
        if name in skipped:
            assert kind == "torch.bfloat16"
        else:
            assert (kind, shape[-1]) == ("torch.uint8", slot)
            assert HEADS[model] in shape[1:3]


@pytest.mark.parametrize("name", [*map(" ".join, OTHERS)])
def test_other_cache_dtypes_have_the_tensors_of_stock(seen: Comparison, name: str) -> None:
    assert seen.stock[name]["tensors"]
    assert seen.patched[name] == seen.stock[name]
