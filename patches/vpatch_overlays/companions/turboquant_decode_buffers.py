"""How large TurboQuant's decode buffers are: as the kernels of `turboquant_decode` need them.

vLLM reserves 32 partial results for each of `max_num_seqs` requests: 541 MB for 1,024 requests of 32 heads of size
128. The kernels split a request into more parts if the batch is small, and into fewer, down to one, if it is large.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from vllm._vpatch.turboquant_decode_drafts import draft_window
from vllm._vpatch.turboquant_decode_launch import choose, most_parts, multiprocessors, split_count
from vllm._vpatch.turboquant_decode_supported import bits_of, covered, layers_of, need_of

if TYPE_CHECKING:
    import torch
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
        bits: of a key's and of a value's code; 8 is fp8.
        max_num_seqs: the most requests of a batch.
        max_model_len: the most tokens of a request.
        window: tokens of each request in a step that verifies drafts.
    """

    heads: int
    kv_heads: int
    head_size: int
    bits: tuple[int, int]
    max_num_seqs: int
    max_model_len: int
    window: int

    def splits(self, tokens: int, requests: int, device: torch.device) -> int:
        """Return into how many parts each token of a batch is split."""
        window = self.window if tokens == requests * self.window else 1
        group, windows = self.heads // self.kv_heads, tokens // window
        launch = choose(windows, self.kv_heads, self.head_size, group * window, self.bits)
        wanted: int = split_count(launch, windows, self.kv_heads, self.max_model_len, multiprocessors(device))
        return max(1, min(wanted, _parts(self, device) // tokens))  # CUDA graphs may pad a batch beyond max_num_seqs

    def numbers(self, device: torch.device) -> int:
        """Return how many float32 numbers the partial results of any batch take, as many for each of `max_num_seqs`."""
        parts = _parts(self, device)
        if self.window > 1:  # of more tokens than requests, the outputs take room, too: less than a part does
            parts += self.max_num_seqs * self.window
        return -(-parts // self.max_num_seqs) * self.max_num_seqs * self.heads * (self.head_size + 1)


@cache
def _parts(need: Need, device: torch.device) -> int:
    """Return the most parts of a batch's tokens: each a request of its own, or all of a request in a window."""
    group, processors = need.heads // need.kv_heads, multiprocessors(device)

    def most(requests: int, window: int) -> int:
        parts: int = most_parts(
            need.kv_heads,
            need.head_size,
            group * window,
            need.bits,
            max_num_seqs=requests,
            max_model_len=need.max_model_len,
            processors=processors,
        )
        return parts * window

    return max(most(need.max_num_seqs * need.window, 1), most(need.max_num_seqs, need.window))


def need_of_layer(impl: TurboQuantAttentionImpl) -> Need | None:
    """Return the need of a layer of the engine that is being built, or None if vLLM's kernel attends to it.

    Without a model, as in tests of a backend alone, nothing is known, and it is None, too.
    """
    from vllm.config import get_current_vllm_config

    config = get_current_vllm_config()
    shape = (impl.num_heads, impl.num_kv_heads, impl.head_size)
    if config.model_config is None or not covered(*shape):
        return None
    limits = (config.scheduler_config.max_num_seqs, config.model_config.max_model_len)
    return Need(*shape, bits_of(impl.tq_config), *limits, draft_window(config))


def decode_splits(impl: TurboQuantAttentionImpl, query: torch.Tensor, batch: TurboQuantMetadata, splits: int) -> int:
    """Return for how many parts of each token a decode step has buffers; vLLM would have `splits`."""
    need: Need | None = need_of(impl)
    return splits if need is None else need.splits(len(query), len(batch.seq_lens), query.device)


def splits_to_reserve(builder: TurboQuantMetadataBuilder, splits: int) -> int:
    """Return for how many parts of each of `max_num_seqs` requests to reserve; vLLM would for `splits`.

    All layers share the workspace. So it is for the one that needs most, and as vLLM has it if its own kernel attends
    to any, or one of another format, such as UltraQuant's.
    """
    config, spec = builder.vllm_config, builder.kv_cache_spec
    needs: list[Need | None] = [need_of(layer.impl) for layer in layers_of(config)]
    if not needs or None in needs:
        return splits
    heads = config.model_config.get_num_attention_heads(parallel_config=config.parallel_config)
    part: int = config.scheduler_config.max_num_seqs * heads * (spec.head_size + 1)
    return max(-(-need.numbers(builder.device) // part) for need in needs if need is not None)


def reserve_while_profiling(impl: TurboQuantAttentionImpl, kv_cache: torch.Tensor, query: torch.Tensor) -> None:
    """Take decode's buffers in the pass by which vLLM sizes the KV cache, so that it is sized around them.

    That pass has an empty cache.
    """
    import torch
    from vllm.v1.worker.workspace import current_workspace_manager, is_workspace_manager_initialized

    need: Need | None = need_of(impl)
    if need is None or kv_cache.numel() or not is_workspace_manager_initialized():
        return
    requests = (need.max_num_seqs, need.heads)
    current_workspace_manager().get_simultaneous(
        ((need.numbers(query.device),), torch.float32),
        ((*requests, need.head_size), query.dtype),
        (requests, torch.float32),
    )
