"""Whether and how the config of a compressed-tensors checkpoint quantizes an output head (`lm_head`).

`vocab_parallel_embedding.py` and `compressed_tensors.py` import this module and one another. Hence this module imports
nothing of vLLM at module level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

MULTIMODAL = "language_model"
"""Prefix of the language model, and so of the head, in a multimodal model. The MTP module beside it has no prefix."""


def spellings(prefix: str) -> tuple[str, ...]:
    """Return the names that a config may use for the head at `prefix`, its own first.

    One checkpoint is read by modules whose heads are at `language_model.lm_head` (a multimodal model) and at `lm_head`
    (its MTP module, its text-only twin). A name of one of them also matches the others.
    """
    bare = prefix.rpartition(".")[2]
    if not bare:  # the model does not name its head
        return (prefix,)
    return (prefix, f"{MULTIMODAL}.{bare}" if bare == prefix else bare)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    from vllm.model_executor.layers.quantization.compressed_tensors.utils import should_ignore_layer

    return bool(should_ignore_layer(layer_name=name, ignore=list(patterns)))


def resolve(prefix: str, config: CompressedTensorsConfig) -> tuple[str, bool]:
    """Find the name by which `config` ignores or targets the head at `prefix`, and whether it quantizes the head.

    `ignore` wins over targets, with one exception: if a regular expression in `ignore` matches only the other spelling,
    a target of the head's own name wins. `re:^(?!.*language_model).*$` says nothing about `language_model.lm_head`.

    Returns:
        The name, `prefix` itself if the config has none; True if a target matches it and nothing ignores it.
    """
    own, *others = spellings(prefix)
    if _matches(own, config.ignore):
        return own, False
    exact = [name for name in others if name in config.ignore]
    if exact:
        return exact[0], False
    if _matches(own, config.target_scheme_map):
        return own, True
    for patterns, quantizes in ((config.ignore, False), (config.target_scheme_map, True)):
        for name in others:
            if _matches(name, patterns):
                return name, quantizes
    return own, False


def name_in_config(layer: torch.nn.Module, prefix: str | None, config: CompressedTensorsConfig) -> str | None:
    """Return the name by which `config` knows a head; for any other layer, return `prefix`."""
    if not prefix:
        return prefix
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    return resolve(prefix, config)[0] if isinstance(layer, ParallelLMHead) else prefix


def head_method(config: CompressedTensorsConfig, layer: ParallelLMHead, prefix: str) -> QuantizeMethodBase | None:
    """Return the quantization method of a head, or None if the head is not quantized; vllm-project/vllm#37291.

    Raises:
        ValueError, NotImplementedError: vLLM does not support the scheme that targets the head.
    """
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsLinearMethod,
    )

    try:
        targeted = config.get_scheme_dict(layer=layer, layer_name=prefix)
    except ValueError:  # no target matches it
        return None
    if not targeted:
        return None
    layer.scheme = config.get_scheme(layer=layer, layer_name=prefix)
    return None if layer.scheme is None else CompressedTensorsLinearMethod(quantization_config=config)


def is_quantized(layer: ParallelLMHead) -> bool:
    """Return whether a compressed-tensors scheme quantizes the weights of a head."""
    if getattr(layer, "scheme", None) is None:
        return False
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsLinearMethod,
    )

    return isinstance(layer.quant_method, CompressedTensorsLinearMethod)
