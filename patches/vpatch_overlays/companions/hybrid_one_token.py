"""New prompts of one token among decodes: Gated DeltaNet must not start them from the state that their block holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder

Counts = tuple[int, int, int, int]
"""Decodes, prefills, tokens of decodes, tokens of prefills: rows of the first come first."""


def prefill_new_prompts(
    builder: GDNAttentionMetadataBuilder, batch: CommonAttentionMetadata, states: torch.Tensor, counts: Counts
) -> Counts:
    """Count as prefills all rows from the first new prompt of one token on; prefills ask each row for a state.

    What graphs of decodes read is refreshed nevertheless, as before: a dummy run may replay one while the rows of the
    last step are still in the batch.

    Args:
        builder: of the metadata.
        batch: rows of a step that verifies no drafts. Padding stands at the end, with no tokens.
        states: the block of each row's state, of shape (rows,).
        counts: as vLLM counts them, which takes every row of one token for a decode.
    """
    decodes, prefills, _, _ = counts
    starts = batch.query_start_loc_cpu
    lengths = starts.diff()
    prompts = getattr(batch, "is_prefilling", None)
    if prompts is None or not (new := prompts[:decodes] & (lengths[:decodes] == 1)).any():
        return counts
    seen = getattr(batch, "seq_lens_cpu_upper_bound", None)  # exact for a prompt
    new &= (batch.seq_lens.cpu() if seen is None else seen)[:decodes] == 1
    if not new.any():
        return counts
    if not prefills and builder.use_full_cuda_graph and decodes <= builder.decode_cudagraph_max_bs:
        builder.non_spec_state_indices_tensor[:decodes].copy_(states, non_blocking=True)
        builder.non_spec_query_start_loc[: decodes + 1].copy_(batch.query_start_loc, non_blocking=True)
    first, rows = int(new.int().argmax()), int(lengths.count_nonzero())
    tokens = int(starts[first])
    return first, rows - first, tokens, int(starts[rows]) - tokens
