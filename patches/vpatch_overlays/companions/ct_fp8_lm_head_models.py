"""Output heads (`lm_head`) in the models that build them: heads without a config, and heads tied to embeddings.

Imported by `vocab_parallel_embedding.py`: nothing of vLLM at module level.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from vllm.config import ModelConfig, VllmConfig
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

COMPRESSED = "compressed-tensors"

READ_THEMSELVES = frozenset({"MuseSparkDSparkForCausalLM"})
"""Models that read the type of their head's weight, and would turn their input into FP8. They get no config here."""


@dataclass(frozen=True)
class Building:
    """The model under construction: its class, the vLLM config that it receives, and its own model config.

    A draft receives the target's vLLM config, or a copy in which a runner replaced parts by the draft's own.
    """

    kind: type[torch.nn.Module]
    vllm_config: VllmConfig
    model_config: ModelConfig

    @property
    def has_own_checkpoint(self) -> bool:
        """Whether the model has a checkpoint other than the target's: an EAGLE draft has, an MTP module has not."""
        speculative = self.vllm_config.speculative_config
        target = (speculative and speculative.target_model_config) or self.vllm_config.model_config
        mine = self.model_config
        return (mine.model, mine.revision) != (target.model, target.revision)

    @cached_property
    def quant_config(self) -> QuantizationConfig | None:
        """The compressed-tensors config of the model's checkpoint; None if that has another quantization."""
        if self.model_config.quantization != COMPRESSED:
            return None
        if not self.has_own_checkpoint:
            return self.vllm_config.quant_config
        from vllm.model_executor.model_loader.utils import configure_quant_config

        own = self.vllm_config.get_quantization_config(
            model_config=self.model_config, load_config=self.vllm_config.load_config
        )
        # It maps the checkpoint's names to those of the model.
        configure_quant_config(quant_config=own, model_class=self.kind)
        return own


_building: ContextVar[Building | None] = ContextVar("building", default=None)


def build(kind: Any, vllm_config: VllmConfig, prefix: str, model_config: ModelConfig) -> torch.nn.Module:
    """Construct a model; meanwhile, `config_of_head` finds the checkpoint's config for heads that get none.

    A model inside another is of the same checkpoint. Some constructors tie the head's weight to the embeddings by hand,
    without `ParallelLMHead.tie_weights`; those heads are made plain here.
    """
    outer = _building.get()
    mine = None if kind.__name__ in READ_THEMSELVES else Building(kind, vllm_config, model_config)
    token = _building.set(outer or mine)
    try:
        model = kind(vllm_config=vllm_config, prefix=prefix)
    finally:
        _building.reset(token)
    _untangle(model)
    return model


def config_of_head(layer: torch.nn.Module, prefix: str, config: QuantizationConfig | None) -> QuantizationConfig | None:
    """Choose the config for a layer: the one that its model passes, or the one of the model's checkpoint.

    The checkpoint's config applies to a head whose model passes none. It also applies to a head of a draft with its own
    checkpoint whose model passes vLLM's config, which may describe the target's checkpoint (EagleMiniCPMForCausalLM).
    Every other layer, and a head that no target matches by name, keeps the config that its model passes.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    building = _building.get()
    if building is None or not prefix or not isinstance(layer, ParallelLMHead):
        return config
    of_target = building.has_own_checkpoint and config is building.vllm_config.quant_config
    if config is not None and not of_target:
        return config
    own = building.quant_config
    if _quantizes(own, prefix):
        return own
    return None if _quantizes(config, prefix) else config


def leave_tied(layer: ParallelLMHead, embeddings: VocabParallelEmbedding) -> None:
    """Make a quantized head plain before it shares the weight of `embeddings`, which are not quantized.

    Checkpoints of tied models have no head. If one has a head nevertheless, loading it is refused (`load`).
    """
    from vllm._vpatch.ct_fp8_lm_head import is_quantized
    from vllm._vpatch.ct_fp8_lm_head_weights import set_padding
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    if not is_quantized(layer):
        return
    for name in set(layer._parameters) - {"bias"}:
        delattr(layer, name)
    layer.scheme = None
    layer.quant_method = UnquantizedEmbeddingMethod()
    layer.weight = embeddings.weight
    set_padding(layer, embeddings.padding_size)
    _note(embeddings, layer.prefix)


def leave_tied_target(config: QuantizationConfig | None, prefix: str, embeddings: VocabParallelEmbedding) -> None:
    """Record that `embeddings` serve as the head at `prefix`, if `config` quantizes that head."""
    if _quantizes(config, prefix):
        _note(embeddings, prefix)


def _quantizes(config: QuantizationConfig | None, prefix: str) -> bool:
    if config is None or config.get_name() != COMPRESSED:
        return False
    from vllm._vpatch.ct_fp8_lm_head import resolve

    _, quantizes = resolve(prefix, config)
    return bool(quantizes)


def _untangle(model: torch.nn.Module) -> None:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    layers = [layer for layer in model.modules() if isinstance(layer, VocabParallelEmbedding)]
    shared = {
        id(w): e for e in layers if not isinstance(e, ParallelLMHead) and (w := getattr(e, "weight", None)) is not None
    }
    for layer in layers:
        if isinstance(layer, ParallelLMHead) and (embeddings := shared.get(id(getattr(layer, "weight", None)))):
            leave_tied(layer, embeddings)


def _note(embeddings: VocabParallelEmbedding, prefix: str) -> None:
    from vllm._vpatch.ct_fp8_lm_head_weights import TIED
    from vllm.logger import init_logger

    setattr(embeddings, TIED, prefix)
    init_logger(name=__name__).warning_once(
        "The checkpoint's config quantizes %s, but ties it to the input embeddings. The head is not quantized.", prefix
    )
