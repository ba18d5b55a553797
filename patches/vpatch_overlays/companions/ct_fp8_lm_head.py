"""An output head (`lm_head`) that the config of a compressed-tensors checkpoint quantises: is it meant, and may it be?

Imported by `vocab_parallel_embedding.py` and `compressed_tensors.py`, which import one another: nothing of vLLM at
module level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

MULTIMODAL = "language_model"
"""Where a multimodal model keeps its language model, and so its head. The MTP module beside it has none."""


def spellings(prefix: str) -> tuple[str, ...]:
    """Give the names that a config may use for the head at `prefix`, its own first.

    One checkpoint is read by modules whose heads are at `language_model.lm_head` (a multimodal model) and at `lm_head`
    (its MTP module, its text-only twin). Whatever names one of them means the others as well.
    """
    bare = prefix.rpartition(".")[2]
    if not bare:  # a model that does not name its head
        return (prefix,)
    return (prefix, f"{MULTIMODAL}.{bare}" if bare == prefix else bare)


def _named(prefix: str, patterns: Iterable[str]) -> str | None:
    """Give the spelling that a pattern, which is a name or `re:` and an expression, matches."""
    from vllm.model_executor.layers.quantization.compressed_tensors.utils import should_ignore_layer

    return next((name for name in spellings(prefix) if should_ignore_layer(name, ignore=list(patterns))), None)


def name_in_config(layer: torch.nn.Module, prefix: str | None, config: CompressedTensorsConfig) -> str | None:
    """Give the name by which `config` ignores or targets a head, `ignore` first; of any other layer `prefix` itself."""
    if not prefix:
        return prefix
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    if not isinstance(layer, ParallelLMHead):
        return prefix
    return _named(prefix, config.ignore) or _named(prefix, config.target_scheme_map) or prefix


def head_method(config: CompressedTensorsConfig, layer: ParallelLMHead, prefix: str) -> QuantizeMethodBase | None:
    """Give the method for a head, None for one that is not quantised; vllm-project/vllm#37291.

    Raises:
        ValueError, NotImplementedError: the scheme that targets the head cannot be had.
    """
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsLinearMethod,
    )

    try:
        targeted = config.get_scheme_dict(layer, prefix)
    except ValueError:  # no target names it
        return None
    if not targeted:
        return None
    layer.scheme = config.get_scheme(layer=layer, layer_name=prefix)
    return None if layer.scheme is None else CompressedTensorsLinearMethod(config)


def is_quantised(layer: ParallelLMHead) -> bool:
    """Tell whether a head's weights are those of a compressed-tensors scheme."""
    if getattr(layer, "scheme", None) is None:
        return False
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsLinearMethod,
    )

    return isinstance(layer.quant_method, CompressedTensorsLinearMethod)


def refuse_tied_head(layer: ParallelLMHead) -> None:
    """Refuse to tie a quantised head to embeddings that are not: its scheme would read them as FP8.

    Raises:
        ValueError: it is quantised.
    """
    if is_quantised(layer):
        raise _tied(layer.prefix)


def refuse_tied_target(config: QuantizationConfig | None, prefix: str) -> None:
    """Refuse a config that quantises the head at `prefix`, for a model that uses its embeddings instead of a head.

    Raises:
        ValueError: it targets the head, and does not ignore it.
    """
    if config is None or config.get_name() != "compressed-tensors":
        return
    if _named(prefix, config.target_scheme_map) and not _named(prefix, config.ignore):
        raise _tied(prefix)


def _tied(prefix: str) -> ValueError:
    return ValueError(
        f"The checkpoint's quantisation config quantises {prefix}, but the model ties it to the input embeddings, "
        "which are not quantised. Set tie_word_embeddings to false if the checkpoint has a head of its own; else add "
        "the head to the config's ignore list."
    )
