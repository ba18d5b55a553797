"""TurboQuant KV cache on hybrid (attention + Mamba or linear attention) models; vllm-project/vllm#39931.

Imported by `turboquant/config.py`, which vLLM's configuration imports early: nothing heavy at module level.
"""

from __future__ import annotations

import logging
from math import lcm
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

logger = logging.getLogger(__name__)


def full_attention_layer_indices(model_config: ModelConfig) -> list[int]:
    """Return the indices of a hybrid model's full-attention layers, ascending; empty if its config does not list them.

    Hybrid configs name their layers in one of three ways: `layer_types` (Qwen3.5, Qwen3-Next), `layers_block_type`
    (Jamba, Zamba2) or `attn_type_list` (MiniMax). Multimodal wrappers keep the first two in their text config.
    """
    text_config = model_config.hf_text_config
    for kinds, attention in (
        (getattr(text_config, "layer_types", None), {"full_attention", "attention"}),
        (getattr(text_config, "layers_block_type", None), {"attention", "hybrid"}),
        (getattr(model_config.hf_config, "attn_type_list", None), {1}),
    ):
        if kinds is not None:
            return [index for index, kind in enumerate(kinds) if kind in attention]
    return []


def boundary_skip_layers(model_config: ModelConfig, n: int = 2) -> list[str]:
    """Return the indices of the layers to leave unquantized, as strings: the first and last `n` of a dense model.

    A hybrid model skips none: its first and last layers are rarely attention, and one skipped attention layer would
    need a page of another size.

    Raises:
        NotImplementedError: a hybrid model whose config does not list its full-attention layers.
    """
    if model_config.is_hybrid:
        indices = full_attention_layer_indices(model_config)
        if not indices:
            raise NotImplementedError(
                "TurboQuant KV cache on a hybrid model requires identifiable full-attention layers, but the model's "
                "config names none (looked for layer_types, layers_block_type, attn_type_list)."
            )
        logger.info("TQ hybrid: full-attention layers %s", indices)
        return []
    num_layers = model_config.hf_text_config.num_hidden_layers
    n = max(0, min(n, num_layers // 2))
    return [str(index) for index in (*range(n), *range(num_layers - n, num_layers))]


def attention_page_size_of_one_token(vllm_config: VllmConfig) -> int:
    """Return the bytes that one token takes in one TurboQuant attention layer's KV cache, per rank.

    TurboQuant packs a token's key and value into one slot, so the formula for unquantized layers does not hold. If some
    layers are left unquantized, both kinds of page must have one size: the least common multiple of the two.
    """
    from vllm.model_executor.layers.quantization.turboquant.config import TurboQuantConfig
    from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
    from vllm.v1.kv_cache_interface import FullAttentionSpec, TQFullAttentionSpec, get_kv_quant_mode

    cache_config, model_config = vllm_config.cache_config, vllm_config.model_config
    cache_dtype = cache_config.cache_dtype
    num_kv_heads = model_config.get_num_kv_heads(parallel_config=vllm_config.parallel_config)
    head_size = model_config.get_head_size()
    packed: int = TQFullAttentionSpec(
        block_size=1,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        head_size_v=head_size,
        dtype=STR_DTYPE_TO_TORCH_DTYPE[cache_dtype],
        kv_quant_mode=get_kv_quant_mode(kv_cache_dtype=cache_dtype),
        tq_slot_size=TurboQuantConfig.from_cache_dtype(cache_dtype=cache_dtype, head_dim=head_size).slot_size_aligned,
    ).page_size_bytes
    if not cache_config.kv_cache_dtype_skip_layers:
        return packed
    unquantised: int = FullAttentionSpec(
        block_size=1, num_kv_heads=num_kv_heads, head_size=head_size, dtype=model_config.dtype
    ).page_size_bytes
    return lcm(packed, unquantised)
