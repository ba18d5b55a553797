"""How large TurboQuant's decode buffers are: as the kernels of `turboquant_decode` need them.

vLLM reserves 32 partial results for each of `max_num_seqs` requests: 541 MB for 1,024 requests of 32 heads of size
128. The kernels split a request into more parts if the batch is small, and into fewer, down to one, if it is large.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from vllm._vpatch.turboquant_decode_launch import choose, most_parts, multiprocessors, split_count
from vllm._vpatch.turboquant_decode_supported import GROUPS, HEAD_SIZES, no_gpu
from vllm._vpatch.turboquant_decode_switch import why_off

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionImpl, TurboQuantMetadataBuilder


@dataclass(frozen=True)
class Need:
    """What the size of the buffers follows from.

    Attributes:
        heads: query heads of this rank.
        kv_heads: KV heads of this rank.
        head_size: numbers of a head.
        max_num_seqs: the most requests of a batch.
        max_model_len: the most tokens of a request.
    """

    heads: int
    kv_heads: int
    head_size: int
    max_num_seqs: int
    max_model_len: int

    @classmethod
    def of(cls, config: VllmConfig, heads: int, kv_heads: int, head_size: int) -> Need | None:
        """Return the need of such layers, or None if vLLM's kernel attends to them.

        It does without a model, too, as in tests of a backend alone: nothing is known then.
        """
        model = config.model_config
        covered = head_size in HEAD_SIZES and heads % kv_heads == 0 and heads // kv_heads in GROUPS
        if not covered or model is None or why_off() or no_gpu():
            return None
        return cls(heads, kv_heads, head_size, config.scheduler_config.max_num_seqs, model.max_model_len)

    def splits(self, batch: int, device: torch.device) -> int:
        """Return into how many parts each request of a batch is split."""
        group = self.heads // self.kv_heads
        launch = choose(batch, self.kv_heads, self.head_size, group)
        wanted: int = split_count(launch, batch, self.kv_heads, self.max_model_len, multiprocessors(device))
        return max(1, min(wanted, _parts(self, device) // batch))  # CUDA graphs may pad a batch beyond max_num_seqs

    def splits_to_reserve(self, device: torch.device) -> int:
        """Return how many parts of each of `max_num_seqs` requests take as much room as any batch does."""
        return -(-_parts(self, device) // self.max_num_seqs)


@cache
def _parts(need: Need, device: torch.device) -> int:
    most: int = most_parts(
        need.kv_heads,
        need.head_size,
        need.heads // need.kv_heads,
        max_num_seqs=need.max_num_seqs,
        max_model_len=need.max_model_len,
        processors=multiprocessors(device),
    )
    return most


def need_of_layer(heads: int, kv_heads: int, head_size: int) -> Need | None:
    """Return the need of a layer of the engine that is being built; see `Need.of`."""
    from vllm.config import get_current_vllm_config

    return Need.of(get_current_vllm_config(), heads, kv_heads, head_size)


def decode_splits(impl: TurboQuantAttentionImpl, batch: int, device: torch.device, splits: int) -> int:
    """Return for how many parts of each request a decode step has buffers; vLLM would have `splits`."""
    need: Need | None = impl._decode_need
    return splits if need is None else need.splits(batch, device)


def splits_to_reserve(builder: TurboQuantMetadataBuilder, splits: int) -> int:
    """Return for how many parts of each of `max_num_seqs` requests to reserve; vLLM would for `splits`."""
    config, spec = builder.vllm_config, builder.kv_cache_spec
    heads = config.model_config.get_num_attention_heads(config.parallel_config)
    need = Need.of(config, heads, spec.num_kv_heads, spec.head_size)
    return splits if need is None else need.splits_to_reserve(builder.device)


def reserve_while_profiling(impl: TurboQuantAttentionImpl, kv_cache: torch.Tensor, query: torch.Tensor) -> None:
    """Take decode's buffers in the pass by which vLLM sizes the KV cache, so that it is sized around them.

    That pass has an empty cache.
    """
    import torch
    from vllm.v1.worker.workspace import current_workspace_manager, is_workspace_manager_initialized

    need: Need | None = impl._decode_need
    if need is None or kv_cache.numel() or not is_workspace_manager_initialized():
        return
    requests = (need.max_num_seqs, need.heads)
    current_workspace_manager().get_simultaneous(
        ((*requests, need.splits_to_reserve(query.device), need.head_size + 1), torch.float32),
        ((*requests, need.head_size), query.dtype),
        (requests, torch.float32),
    )
