"""Model configs for `TurboQuantConfig.get_boundary_skip_layers`, and the layers that it skips in each."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

LINEAR, FULL = "linear_attention", "full_attention"


@dataclass(frozen=True)
class Case:
    """A model's text config, its wrapper's config if that differs, and the other arguments."""

    text: dict[str, Any]
    wrapper: dict[str, Any] | None = None
    arguments: tuple[int, ...] = ()
    named: int | None = None
    is_hybrid: bool = True

    @property
    def model(self) -> SimpleNamespace:
        text = SimpleNamespace(**self.text)
        wrapper = text if self.wrapper is None else SimpleNamespace(**self.wrapper)
        return SimpleNamespace(is_hybrid=self.is_hybrid, hf_text_config=text, hf_config=wrapper)


def dense(layers: int, *arguments: int, named: int | None = None) -> Case:
    """A model of attention layers only."""
    return Case({"num_hidden_layers": layers}, arguments=arguments, named=named, is_hybrid=False)


CASES = {
    **{f"dense {layers}": dense(layers) for layers in (36, 8, 5, 4, 3, 2, 1, 0)},
    **{f"dense 10, n={n}": dense(10, n) for n in (-1, 0, 1, 3, 5, 6, 100)},
    "dense 10, named n": dense(10, named=1),
    "dense, layer_types": Case({"num_hidden_layers": 12, "layer_types": [FULL] * 12}, is_hybrid=False),
    "layer_types": Case({"layer_types": [LINEAR, LINEAR, LINEAR, FULL] * 3}),
    "layer_types, Jamba's word": Case({"layer_types": ["mamba", "attention", "mamba"]}),
    "layers_block_type": Case({"layers_block_type": ["mamba", "attention", "mamba", "hybrid"]}),
    "attn_type_list": Case({"attn_type_list": [0, 0, 1, 0, 1]}),
    "hybrid, n": Case({"layer_types": [LINEAR, FULL]}, arguments=(1,)),
    "hybrid, n=0": Case({"layer_types": [LINEAR, FULL]}, arguments=(0,)),
    "hybrid, named n": Case({"layer_types": [LINEAR, FULL]}, named=0),
    # In a multimodal wrapper, only attn_type_list is about the text model's layers.
    "text config first": Case({"layer_types": [LINEAR, FULL]}, wrapper={"layer_types": [FULL, FULL]}),
    "wrapper only": Case({}, wrapper={"layer_types": [FULL]}),
    "wrapper's attn_type_list": Case({}, wrapper={"attn_type_list": [1, 0]}),
    "text config's attn_type_list": Case({"attn_type_list": [1, 0]}, wrapper={}),
    "layer_types before layers_block_type": Case({"layer_types": [LINEAR, FULL], "layers_block_type": ["attention"]}),
    "first that is there": Case({"layer_types": [LINEAR], "layers_block_type": ["attention"]}),
    "layer_types is None": Case({"layer_types": None, "layers_block_type": ["mamba", "hybrid"]}),
    "layer_types is empty": Case({"layer_types": [], "attn_type_list": [1]}),
    "no list": Case({"num_hidden_layers": 8}),
    "no attention": Case({"attn_type_list": [0, 0]}),
    "sliding only": Case({"layer_types": [LINEAR, "sliding_attention"]}),
}


def skipped(found: dict[str, Any], case: Case) -> None:
    """Return which layers are attention, and which of them TurboQuant skips."""
    from vllm.model_executor.layers.quantization.turboquant import config

    named = {} if case.named is None else {"n": case.named}
    found["skipped"] = config.TurboQuantConfig.get_boundary_skip_layers(case.model, *case.arguments, **named)
    found["attention"] = config._get_full_attention_layer_indices(case.model)
