"""TurboQuant attention's use of vLLM's shared workspace; vllm-project/vllm#44053."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantMetadataBuilder
    from vllm.v1.worker.workspace import WorkspaceManager

    Tensors: TypeAlias = list[torch.Tensor]
    Wanted: TypeAlias = tuple[tuple[int, ...], torch.dtype]

logger = logging.getLogger(__name__)


def reserve_workspace(
    builder: TurboQuantMetadataBuilder, manager: WorkspaceManager, longest_chunk_by_decode: int
) -> None:
    """Grow the workspace of one rank to the size that decode and continuation prefill will need.

    Both use it from its beginning, one after the other, so it grows to the larger of the two. Decode stores its partial
    results for `max_num_seqs` requests. A continuation prefill, of a chunk of more than `longest_chunk_by_decode`
    tokens, stores keys and values of the longest context but for one token, in whole blocks of the builder's size. With
    the overlay `turboquant-tiles` it stores nothing there.

    Raises:
        AssertionError: the workspace is locked, and smaller than that.
    """
    import torch
    from vllm.utils.math_utils import round_up

    config, spec = builder.vllm_config, builder.kv_cache_spec
    model, scheduler = config.model_config, config.scheduler_config

    rows = (scheduler.max_num_seqs, query_heads(builder))
    splits = _decode_splits(builder, config.attention_config.tq_max_kv_splits_for_cuda_graph)
    manager.get_simultaneous(
        ((*rows, splits, spec.head_size + 1), torch.float32),
        ((*rows, spec.head_size), model.dtype),
        (rows, torch.float32),
    )
    if _in_tiles():
        return
    if continues_prompts(config) and scheduler.max_num_batched_tokens > longest_chunk_by_decode:
        tokens = round_up(x=max(0, model.max_model_len - 1), y=spec.block_size)
        cached = ((1, spec.num_kv_heads, tokens, spec.head_size), torch.float16)
        manager.get_simultaneous(cached, cached)


def continues_prompts(config: VllmConfig) -> bool:
    """Return whether a step may go on with a prompt of which a part is cached.

    That part is an earlier chunk, or a cached prefix, or comes by a KV connector, which needs no prefix caching. Tests
    of a builder have no cache.
    """
    cached = getattr(getattr(config, "cache_config", None), "enable_prefix_caching", False)
    transferred = getattr(config, "kv_transfer_config", None) is not None
    return bool(config.scheduler_config.enable_chunked_prefill or cached or transferred)


def query_heads(builder: TurboQuantMetadataBuilder) -> int:
    """Return the most query heads of this rank: those of the model, or of a layer of the builder, as of a draft model.

    Tests of a builder have no layers.
    """
    config = builder.vllm_config
    layers = getattr(getattr(config, "compilation_config", None), "static_forward_context", {})
    own = [layers[name].impl.num_heads for name in builder.layer_names if name in layers]
    heads: int = config.model_config.get_num_attention_heads(parallel_config=config.parallel_config)
    return max(heads, *own) if own else heads


def _decode_splits(builder: TurboQuantMetadataBuilder, splits: int) -> int:
    try:
        from vllm._vpatch.turboquant_decode_buffers import splits_to_reserve
    except ModuleNotFoundError:  # that overlay is not applied
        return splits
    return int(splits_to_reserve(builder, splits))


def _in_tiles() -> bool:
    try:
        from vllm._vpatch.turboquant_tiles import in_tiles
    except ModuleNotFoundError:  # that overlay is not applied
        return False
    return bool(in_tiles())


def scratch(manager: WorkspaceManager | None, device: torch.device, *wanted: Wanted) -> Tensors:
    """Return temporary tensors, one for each shape and dtype in `wanted`.

    They are views into the workspace, and alias those of an earlier call. If there is no workspace (`manager` is None),
    or it is locked and too small, they are newly allocated.
    """
    import torch

    if manager is not None:
        try:
            views: Tensors = manager.get_simultaneous(*wanted)
        except AssertionError:
            if not manager.is_locked():
                raise
            _say_that_it_is_too_small()
        else:
            return views
    return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in wanted]


@cache
def _say_that_it_is_too_small() -> None:
    logger.warning("TurboQuant needs more than the reserved workspace and allocates: memory use may exceed its budget.")
