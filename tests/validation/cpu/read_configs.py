"""The models that the real vLLM builds from config.json files, or the errors, by the folders below the given one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.validation.cpu.platform import (
    import_kimi,
    import_latent_attention,
    name_activations,
    pretend_capability,
    register_bailing,
    single_rank,
    stand_in_for_flashinfer,
    stand_in_for_vision,
    without_cuda_memory,
)
from tests.validation.cpu.probing import engine_config, layers_of


def dtype(value: Any) -> str:
    """Return a dtype's name as a config spells it."""
    return str(value).removeprefix("torch.")


def attention(layer: Any) -> list[Any]:
    """Return the heads, KV heads, head size and window of an attention layer."""
    kv_heads = getattr(layer, "num_kv_heads", 1)  # of latent attention
    return [layer.num_heads, kv_heads, layer.head_size, getattr(layer, "sliding_window", None)]


def state(layer: Any) -> list[Any]:
    """Return the shapes and dtypes of a linear-attention layer's state, convolution first."""
    shapes = [sorted(shape) for shape in layer.get_state_shape()]
    return [shapes, [dtype(one) for one in layer.get_state_dtype()]]


def tied(model: Any) -> bool:
    """Whether the head is the embedding; of a multimodal model the outer config decides, as in `with_hf_config`."""
    configs = (model.hf_config, model.hf_text_config)
    return bool(next(one.tie_word_embeddings for one in configs if hasattr(one, "tie_word_embeddings")))


def look(folder: Path) -> dict[str, Any]:
    """Build a model without memory and describe it."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.models import ModelRegistry

    config = engine_config(str(folder), max_model_len=None, max_num_batched_tokens=None, enforce_eager=True)
    model = config.model_config
    config.device_config.device = torch.device("meta")  # where vLLM lets transformers build the model
    torch.set_default_dtype(model.dtype)
    with without_cuda_memory():
        layers = layers_of(config)
    indexers = [name for name, layer in layers.items() if name.endswith("indexer.k_cache")]
    config.compilation_config.static_forward_context.clear()
    kind, _ = ModelRegistry.resolve_model_cls(model.architectures, model)
    with set_current_vllm_config(config), torch.device("meta"), without_cuda_memory():
        built = kind(vllm_config=config)
    torch.set_default_dtype(torch.float32)
    attending = {name: layer for name, layer in layers.items() if name not in indexers}
    found = sorted(attending.items(), key=lambda item: [int(part) for part in item[0].split(".") if part.isdigit()])
    return {
        "layers": [attention(one) if hasattr(one, "head_size") else state(one) for _, one in found],
        "indexers": len(indexers),
        "vocab_size": model.get_vocab_size(),
        "hidden_size": model.get_hidden_size(),
        "max_model_len": model.max_model_len,
        "dtype": dtype(model.dtype),
        "tied": tied(model),
        "experts": model.get_num_experts(),
        "parameters": {name: one.numel() * one.element_size() for name, one in built.named_parameters()},
    }


def main(home: str) -> dict[str, Any]:
    stand_in_for_flashinfer()
    pretend_capability(9, 0)  # with FlashAttention 3
    import torch

    torch.cuda.Event = object  # made if there are shared experts
    name_activations()
    import_latent_attention()
    import_kimi()
    stand_in_for_vision()
    register_bailing()
    from vllm.config import set_current_vllm_config

    # The groups of experts are made for a model that has experts.
    with set_current_vllm_config(engine_config(f"{home}/experts", max_model_len=None)):
        single_rank(home)
    found: dict[str, Any] = {}
    for config in sorted(Path(home).glob("*/config.json")):
        try:
            found[config.parent.name] = look(config.parent)
        except Exception as error:
            found[config.parent.name] = {"refused": f"{type(error).__name__}: {error}"[:2000]}
    return found
