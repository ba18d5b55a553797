"""How large TurboQuant's decode buffers are: as the kernels of `turboquant_decode` need them.

vLLM reserves 32 partial results for each of `max_num_seqs` requests: 541 MB for 1,024 requests of 32 heads of size
128. The kernels split a request into more parts if the batch is small, and into fewer, down to one, if it is large.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from vllm._vpatch.turboquant_decode_drafts import covered, draft_window
from vllm._vpatch.turboquant_decode_launch import choose, most_parts, multiprocessors, split_count

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.turboquant_attn import (
        TurboQuantAttentionImpl,
        TurboQuantMetadata,
        TurboQuantMetadataBuilder,
    )


@dataclass(frozen=True)
class Need:
    """What the size of the buffers follows from.

    Attributes:
        heads: query heads of this rank.
        kv_heads: KV heads of this rank.
        head_size: numbers of a head.
        max_num_seqs: the most requests of a batch.
        max_model_len: the most tokens of a request.
        window: tokens of each request in a step that verifies drafts.
    """

    heads: int
    kv_heads: int
    head_size: int
    max_num_seqs: int
    max_model_len: int
    window: int

    @classmethod
    def of(cls, config: VllmConfig, heads: int, kv_heads: int, head_size: int) -> Need | None:
        """Return the need of such layers, or None if vLLM's kernel attends to them.

        It does without a model, too, as in tests of a backend alone: nothing is known then.
        """
        model, requests = config.model_config, config.scheduler_config.max_num_seqs
        if model is None or not covered(heads, kv_heads, head_size):
            return None
        return cls(heads, kv_heads, head_size, requests, model.max_model_len, draft_window(config))

    def splits(self, tokens: int, requests: int, device: torch.device) -> int:
        """Return into how many parts each token of a batch is split."""
        window = self.window if tokens == requests * self.window else 1
        group, windows = self.heads // self.kv_heads, tokens // window
        launch = choose(windows, self.kv_heads, self.head_size, group * window)
        wanted: int = split_count(launch, windows, self.kv_heads, self.max_model_len, multiprocessors(device))
        return max(1, min(wanted, _parts(self, device) // tokens))  # CUDA graphs may pad a batch beyond max_num_seqs

    def reserved_splits(self, device: torch.device) -> int:
        """Return how many parts of each of `max_num_seqs` requests take as much room as any batch does."""
        parts = _parts(self, device)
        if self.window > 1:  # of more tokens than requests, the outputs take room, too: less than a part does
            parts += self.max_num_seqs * self.window
        return -(-parts // self.max_num_seqs)


@cache
def _parts(need: Need, device: torch.device) -> int:
    """Return the most parts of a batch's tokens: each a request of its own, or all of a request in a window."""
    group, processors = need.heads // need.kv_heads, multiprocessors(device)

    def most(requests: int, window: int) -> int:
        parts: int = most_parts(
            need.kv_heads,
            need.head_size,
            group * window,
            max_num_seqs=requests,
            max_model_len=need.max_model_len,
            processors=processors,
        )
        return parts * window

    return max(most(need.max_num_seqs * need.window, 1), most(need.max_num_seqs, need.window))


def need_of_layer(heads: int, kv_heads: int, head_size: int) -> Need | None:
    """Return the need of a layer of the engine that is being built; see `Need.of`."""
    from vllm.config import get_current_vllm_config

    return Need.of(get_current_vllm_config(), heads, kv_heads, head_size)


def decode_splits(impl: TurboQuantAttentionImpl, query: torch.Tensor, batch: TurboQuantMetadata, splits: int) -> int:
    """Return for how many parts of each token a decode step has buffers; vLLM would have `splits`."""
    need: Need | None = impl._decode_need
    return splits if need is None else need.splits(len(query), len(batch.seq_lens), query.device)


def splits_to_reserve(builder: TurboQuantMetadataBuilder, splits: int) -> int:
    """Return for how many parts of each of `max_num_seqs` requests to reserve; vLLM would for `splits`."""
    config, spec = builder.vllm_config, builder.kv_cache_spec
    heads = config.model_config.get_num_attention_heads(config.parallel_config)
    need = Need.of(config, heads, spec.num_kv_heads, spec.head_size)
    return splits if need is None else need.reserved_splits(builder.device)


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
        ((*requests, need.reserved_splits(query.device), need.head_size + 1), torch.float32),
        ((*requests, need.head_size), query.dtype),
        (requests, torch.float32),
    )
