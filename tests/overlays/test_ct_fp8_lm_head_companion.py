"""The companion modules where they stand, without vLLM; with it they run in `test_ct_fp8_lm_head_cpu.py`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vpatch_overlays.companions.ct_fp8_lm_head import is_quantised, name_in_config, refuse_tied_target, spellings
from vpatch_overlays.companions.ct_fp8_lm_head_weights import cut, set_geometry


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("lm_head", ("lm_head", "language_model.lm_head")),
        ("language_model.lm_head", ("language_model.lm_head", "lm_head")),
        ("thinker.lm_head", ("thinker.lm_head", "lm_head")),
        ("embed_out", ("embed_out", "language_model.embed_out")),
        ("", ("",)),
    ],
)
def test_a_config_may_name_a_head_by_another_prefix(prefix: str, names: tuple[str, ...]) -> None:
    assert spellings(prefix) == names


@pytest.mark.parametrize(
    ("rows", "ranks", "block", "is_cut"),
    [
        (1024, 1, 128, False),
        (1000, 1, 128, False),  # the last block may be short
        (1024, 2, 128, False),
        (1024, 4, 128, False),
        (1024, 8, 256, True),
        (1088, 2, 128, True),
        (248_320, 4, 128, False),
        (248_320, 8, 128, True),
        (248_320, 8, 64, False),
        (248_320, 8, 1, False),
    ],
)
def test_a_block_is_cut(rows: int, ranks: int, block: int, is_cut: bool) -> None:  # noqa: FBT001 - a table's column
    assert cut(rows, ranks, block) is is_cut


def test_the_geometry_is_that_of_one_rank() -> None:
    layer: Any = SimpleNamespace(embedding_dim=2048, num_embeddings_padded=248_320, tp_size=4)

    set_geometry(layer, "lm_head")

    assert (layer.input_size, layer.input_size_per_partition) == (2048, 2048)
    assert (layer.output_size, layer.output_size_per_partition) == (248_320, 62_080)
    assert layer.output_partition_sizes == [62_080]
    assert layer.prefix == "lm_head"


@pytest.mark.parametrize("layer", [SimpleNamespace(), SimpleNamespace(scheme=None)])
def test_a_head_without_a_scheme_is_not_quantised(layer: Any) -> None:
    assert not is_quantised(layer)


@pytest.mark.parametrize("prefix", [None, ""])
def test_a_layer_without_a_name_has_none_in_the_config(prefix: str | None) -> None:
    layer: Any = object()
    config: Any = None

    assert name_in_config(layer, prefix, config) == prefix


@pytest.mark.parametrize("config", [None, SimpleNamespace(get_name=lambda: "fp8")])
def test_other_quantisations_may_tie_their_head(config: Any) -> None:
    refuse_tied_target(config, "lm_head")
