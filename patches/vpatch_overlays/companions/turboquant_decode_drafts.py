"""Verification of drafts by TurboQuant's decode attention: all tokens of a request in one window.

vLLM takes a verification step, 1 + k tokens of each request, for pieces of prompts: a loop over requests in Python,
which no CUDA graph can hold. Here such a step is a decode step, so that `FULL` graphs hold it. The lengths are those on
the device, which are exact while drafts are still being judged. It needs the overlay `turboquant-mtp`, which is right
where this does not serve, and counts on this where it does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm._vpatch.turboquant_decode_supported import WINDOWS, layers_of, need_of, supported
from vllm._vpatch.turboquant_decode_switch import why_off

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionImpl, TurboQuantMetadata


def draft_window(config: VllmConfig) -> int:
    """Return how many tokens of a request a verification step brings; 1 if it is not a decode step."""
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantMetadataBuilder

    speculation = getattr(config, "speculative_config", None)
    drafts = getattr(speculation, "num_speculative_tokens", None)
    if not drafts or not getattr(TurboQuantMetadataBuilder, "verifies_exactly", False):
        return 1
    # Parallel drafting has steps of up to 1 + 2k tokens, and context parallelism has one length for each rank.
    if getattr(speculation, "parallel_drafting", False) or config.parallel_config.decode_context_parallel_size > 1:
        return 1
    return 1 + drafts if 1 + drafts in WINDOWS else 1


def verifies(config: VllmConfig) -> bool:
    """Return whether steps that verify drafts are decode steps: if all TurboQuant layers can take them."""
    needs = [need_of(layer.impl) for layer in layers_of(config)]
    return bool(needs) and all(need is not None and need.window > 1 for need in needs)


def with_rows(
    impl: TurboQuantAttentionImpl, query: torch.Tensor, kv_cache: torch.Tensor, batch: TurboQuantMetadata
) -> TurboQuantMetadata:
    """Return what the decode launcher is to be given for a batch whose requests may have several tokens.

    If all have as many as a verification step has, it is the batch itself, of windows. If not, every token gets a row
    of its own. That is so, too, where the kernels do not take the call, so that vLLM's can.

    Args:
        impl: the layer's attention.
        query: (tokens, heads, head size).
        kv_cache: as the launcher takes it.
        batch: `block_table` and `seq_lens` have a row for each request, `query_start_loc` says where its tokens begin.
    """
    tokens, requests = len(query), len(batch.seq_lens)
    if tokens == requests:
        return batch
    need: Any = need_of(impl)
    window = need.window if need is not None and tokens == requests * need.window else 0
    if window and _takes(impl, query, kv_cache, batch, window):
        return batch
    return _by_token(batch, tokens, window)


def _takes(
    impl: TurboQuantAttentionImpl, query: torch.Tensor, kv_cache: torch.Tensor, batch: TurboQuantMetadata, window: int
) -> bool:
    config = impl.tq_config
    reason = why_off() or supported(
        query,
        kv_cache,
        batch.block_table,
        batch.seq_lens,
        config.key_mse_bits,
        config.key_packed_size,
        config.effective_value_quant_bits,
        key_fp8=config.key_fp8,
        window=window,
    )
    return reason is None


def _by_token(batch: TurboQuantMetadata, tokens: int, window: int) -> TurboQuantMetadata:
    """Return the batch as if every token were a request, without waiting for the device.

    With a window, every request has as many tokens, so that a CUDA graph can hold this; it may be padded by requests of
    length 0.
    """
    import torch

    starts = batch.query_start_loc
    token = torch.arange(tokens, device=starts.device)
    if window:
        row, behind = token // window, window - 1 - token % window
    else:
        requests = torch.arange(len(starts) - 1, device=starts.device)
        row = torch.repeat_interleave(requests, starts.diff(), output_size=tokens)
        behind = starts[row + 1] - 1 - token  # tokens of the request after this one
    lengths = (batch.seq_lens[row] - behind.to(batch.seq_lens.dtype)).clamp(min=0)
    return replace(batch, block_table=batch.block_table[row], seq_lens=lengths)
