"""TurboQuant's continuation prefill in tiles: memory that no longer grows with the context, and is counted.

To go on with a prompt of which a part is cached, TurboQuant dequantizes all of that part: for Qwen3.6-27B at 262,144
tokens 1 GiB, and 2 GiB more of copies, which memory profiling does not see. The KV cache is then sized as if they were
free, and a long prompt ends in "out of memory".

Here the cached part is dequantized 16,384 tokens at a time. A chunk attends to each such tile, to the last one together
with itself, and vLLM's own `merge_attn_states` puts the results together. The largest continuation and the largest
decode are gone through once while vLLM profiles memory, so that the KV cache is sized around what they take: on both
model runners, with and without CUDA graphs, and whether chunked prefill is on or not. With `kv_cache_memory_bytes` the
size is yours; what decode takes of the workspace is there before the cache all the same.

Opt-in, since it goes beyond upstream and sums in another order: results differ as much as between two attention
kernels. Without flash attention, and on ROCm and XPU, where there is no log-sum-exp to merge by, all stays as it is.
With dual batch overlap the V1 runner profiles half a batch at a time, and so half of a continuation is counted. A size
that vLLM stored before (`VLLM_ENABLE_STARTUP_PLAN`, from 0.26 on) does not count it: delete the plan after `apply`.
"""

from vpatch import Companion, Need, Overlay, Part, Use, probe

from vpatch_overlays import _shared as shared
from vpatch_overlays._shared import (
    attention,
    continuation,
    forward,
    impl_init,
    not_reserved_by_upstream,
    reserve_workspace,
)

helper = Companion(f"{shared.COMPANIONS}.turboquant_tiles")

# An empty cache marks the profiling pass by which vLLM sizes the cache. Layers that use another's cache have no key.
rehearsed = """
+if attn_metadata is None and kv_cache.numel() == 0 and key is not None and in_tiles():
+    rehearse(self, layer, query, key, value)
 if attn_metadata is None:
     return output.fill_(0)
"""
tiled = """
+if in_tiles():
+    return continue_in_tiles(self, query, key_chunk, val_chunk, kv_cache, block_table, cached_len, Pi, centroids)
 q_len, Hq, D = query.shape
"""
# `turboquant-workspace` changes the statement above.
not_reserved = """
+if all_in_tiles(self):
+    return
 if not reserve_continuation_prefill:
     return
"""


def needed(use: Use) -> Need:
    """Return what the overlay is for; vLLM starts without it."""
    because = f"opt-in: without it, a prompt of {use.longest:,} tokens takes memory uncounted"
    if use.outgrows:
        because += ", and here that may be more than the card has"
    return shared.not_turboquant(use) or Need(needed=False, because=because, recommended=use.outgrows)


overlay = Overlay(
    summary="TurboQuant's continuation prefill in tiles of 16,384 tokens, counted when the KV cache is sized.",
    symptoms=(
        "With a TurboQuant KV cache, a long prompt ends in 'out of memory', although the KV cache has room for it.",
        "While vLLM reads a long prompt, it takes gigabytes more than --gpu-memory-utilization allows.",
    ),
    beside=("in _continuation_prefill",),
    upstream=("vllm-project/vllm#43878", "vllm-project/vllm#40420"),
    needed=needed,
    releases={
        ">=0.18,<0.20": "not_applicable: there is no TurboQuant KV cache yet",
        ">=0.20,<0.24": "pending: vLLM dequantizes the whole cached part of a prompt at once",
        ">=0.24": "pending: the same, in a workspace that vLLM reserves after it has sized the KV cache",
    },
    opt_in=True,
    probes=(probe(shared.PROBES, "turboquant_tiles"),),
    parts=(
        Part(
            "tiles",
            # Upstream merges the attention of several pieces, too; no release does.
            merged=continuation.contains("merge_attn_states(...)"),
            absent=shared.no_turboquant,
            shapes={
                "0.20": [
                    impl_init.insert_after(
                        "self.max_num_kv_splits = vllm_config.attention_config.tq_max_kv_splits_for_cuda_graph",
                        "self._limits = Limits.of(vllm_config)",
                    ),
                    forward.patch(rehearsed),
                    continuation.patch(tiled),
                    helper.import_into(attention, "Limits, all_in_tiles, continue_in_tiles, in_tiles, rehearse"),
                ]
            },
        ),
        Part(
            "reservation",
            absent=shared.no_turboquant | not_reserved_by_upstream.means("this vLLM reserves no workspace for prompts"),
            shapes={"0.24": reserve_workspace.patch(not_reserved)},
        ),
    ),
)
