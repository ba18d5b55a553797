"""Which TurboQuant batches read no KV cache (vllm-project/vllm#46460), and which CUDA graphs can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.backend import CommonAttentionMetadata


def only_fresh_prompts(batch: CommonAttentionMetadata, num_decodes: int) -> bool:
    """Check that every request after the first `num_decodes` starts its prompt in this step, and so reads no KV cache.

    The check reads only the CPU. There the length of a verification step may be too large, but it is never the number
    of the step's tokens, since the request has a prompt. All other lengths are exact.

    Returns:
        False also if there are no lengths on the CPU: attention then looks at each request by itself.
    """
    lengths = batch.seq_lens_cpu_upper_bound
    if lengths is None or batch.max_query_len <= 1:
        return False
    starts = batch.query_start_loc_cpu[num_decodes:]
    new = starts[1:] - starts[:-1]
    return bool(((new == 0) | (new == lengths[num_decodes : num_decodes + len(new)])).all())


def verified_in_graphs(config: VllmConfig) -> bool:
    """Return whether another overlay, `turboquant-decode`, verifies drafts in steps that CUDA graphs can hold."""
    try:
        from vllm._vpatch.turboquant_decode_drafts import verifies
    except ModuleNotFoundError:  # that overlay is not applied
        return False
    return bool(verifies(config))
