"""The companion module without vLLM; `test_turboquant_hybrid_cpu.py` runs it inside the real one."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from vpatch_overlays.companions.turboquant_hybrid import boundary_skip_layers, full_attention_layer_indices


def model(*, hybrid: bool, layers: int = 0, attn_type_list: list[int] | None = None, **text: Any) -> Any:
    return SimpleNamespace(
        is_hybrid=hybrid,
        hf_text_config=SimpleNamespace(num_hidden_layers=layers, **text),
        hf_config=SimpleNamespace(**({} if attn_type_list is None else {"attn_type_list": attn_type_list})),
    )


@pytest.mark.parametrize(
    ("layers", "n", "skipped"),
    [
        (8, 2, "0 1 6 7"),
        (8, 1, "0 7"),
        (3, 2, "0 2"),
        (1, 2, ""),
        (0, 2, ""),
        (8, 0, ""),
        (8, -1, ""),
        (4, 9, "0 1 2 3"),
    ],
)
def test_a_dense_model_skips_its_first_and_last_layers(layers: int, n: int, skipped: str) -> None:
    assert boundary_skip_layers(model(hybrid=False, layers=layers), n) == skipped.split()


@pytest.mark.parametrize(
    "config",
    [
        {"layer_types": ["linear_attention", "full_attention", "mamba", "attention"]},
        {"layers_block_type": ["mamba", "hybrid", "mamba", "attention"]},
        {"attn_type_list": [0, 1, 0, 1]},
        {"layer_types": ["x", "attention", "x", "attention"], "layers_block_type": ["attention"] * 4},
    ],
)
def test_a_hybrid_model_skips_none(config: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    hybrid = model(hybrid=True, layers=4, **config)

    with caplog.at_level(logging.INFO):
        assert boundary_skip_layers(hybrid) == []

    assert full_attention_layer_indices(hybrid) == [1, 3]
    assert caplog.messages == ["TQ hybrid: full-attention layers [1, 3]"]


@pytest.mark.parametrize("config", [{}, {"layer_types": []}, {"layer_types": ["mamba"]}, {"attn_type_list": [0]}])
def test_a_hybrid_model_without_attention_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match="requires identifiable full-attention layers"):
        boundary_skip_layers(model(hybrid=True, layers=1, **config))
