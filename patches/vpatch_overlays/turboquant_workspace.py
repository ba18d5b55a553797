"""TurboQuant's continuation prefill and decode: in the shared workspace, reserved before it is locked.

To go on with a prompt of which a part is cached, TurboQuant dequantizes that part. vLLM 0.20 does so into buffers of
each layer, which grow with the prompt and stay: 5 GiB for Qwen3.6-35B-A3B at 262,144 tokens, 16 GiB for the 27B. From
0.21 on all layers share vLLM's workspace. Nobody makes it large enough before it is locked, so that the first long
prompt (with speculative decoding the first decode) ends in "Workspace is locked".

The metadata builder now reserves, on every release, the larger of what decode takes for `max_num_seqs` requests and of
what a continuation takes for `max_model_len` tokens (512 MiB and 1 GiB for these two models). So does 0.24, but for a
continuation only with chunked prefill. Without it, a prompt goes on from a cached prefix all the same, and from 0.24 to
0.33 the first such request stops the engine. The V2 runner, on which dense models run, locks the workspace from 0.30 on
only: before, that request replaces a buffer that CUDA graphs use. Here prefix caching and a KV connector count as well.
A draft model with more query heads than the model has its part, too.

On 0.20 decode has buffers of its own; its part is reserved all the same, so that one size holds everywhere, and at most
one layer's worth is lost. Where the reservation does not serve (the second micro-batch; a session of streamed input
without chunked prefill and prefix caching), a call gets memory for as long as it runs, where 0.24 to 0.33 raise the
error.

As in 0.24, vLLM's memory profiling does not count the reservation.

From 0.21 on, "Workspace is locked" also stopped TurboQuant with speculative decoding, which computes wrong attention in
two cases: in CUDA graphs of whole decode steps, and with asynchronous scheduling, the default with MTP and EAGLE.
`turboquant-mtp`, also a default overlay, corrects both. Without it, a patched 0.21 to 0.23 refuses to start in these
cases, and names what helps: that overlay, `enforce_eager`, `async_scheduling` off, another KV cache type. Everything
else starts, eager ngram speculation among it.
"""

from vpatch import Companion, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared
from vpatch_overlays._shared import attention, builder, builder_init, continuation, decode, reserve_workspace

helper = Companion(f"{shared.COMPANIONS}.turboquant_workspace")

RESERVE_WORKSPACE = '''
def _reserve_workspace(self) -> None:
    """Grow the shared workspace to the size that TurboQuant will need, before CUDA graph capture locks it."""
    if is_workspace_manager_initialized():
        reserve_workspace(self, current_workspace_manager(), _CONTINUATION_DECODE_THRESHOLD)
'''

# Without a workspace, as in vLLM's kernel tests, `scratch` allocates.
in_scratch_from_growing_buffers = """
-k_buf = getattr(layer, "_tq_k_dequant_buf", None)
-if k_buf is None or k_buf.shape[2] < alloc_len:
-    k_buf = torch.empty(buf_shape, dtype=torch.float16, device=device)
-    v_buf = torch.empty(buf_shape, dtype=torch.float16, device=device)
-    layer._tq_k_dequant_buf = k_buf
-    layer._tq_v_dequant_buf = v_buf
-else:
-    v_buf = layer._tq_v_dequant_buf
+k_buf, v_buf = scratch(
+    current_workspace_manager() if is_workspace_manager_initialized() else None,
+    device,
+    (buf_shape, torch.float16),
+    (buf_shape, torch.float16),
+)
"""
in_scratch = """
-current_workspace_manager().get_simultaneous($BUFFERS)
+scratch(current_workspace_manager(), $DEVICE, $BUFFERS)
"""
KEYS_AND_VALUES = "(buf_shape, torch.float16), (buf_shape, torch.float16)"
PARTIAL_RESULTS = "((B, Hq, S, D + 1), torch.float32), ((B, Hq, D), query.dtype), ((B, Hq), torch.float32)"

# From 0.24 on. `turboquant-tiles` and `turboquant-decode` change other statements of the function.
for_cached_prefixes = """
 reserve_continuation_prefill = (
-    scheduler_config.enable_chunked_prefill
+    continues_prompts(self.vllm_config)
     and scheduler_config.max_num_batched_tokens > _CONTINUATION_DECODE_THRESHOLD
 )
"""
for_any_layer = """
-num_heads = model_config.get_num_attention_heads(parallel_config)
+num_heads = query_heads(self)
"""

reservation = (
    attention.ensure_import(
        "from vllm.v1.worker.workspace import current_workspace_manager, is_workspace_manager_initialized"
    ),
    builder.add_function(RESERVE_WORKSPACE),
    builder_init.insert_after("self._init_reorder_batch_threshold(...)", "self._reserve_workspace()"),
    helper.import_into(attention, "reserve_workspace, scratch"),
)
locked = (
    continuation.patch(in_scratch, DEVICE="device", BUFFERS=KEYS_AND_VALUES),
    decode.patch(in_scratch, DEVICE="query.device", BUFFERS=PARTIAL_RESULTS),
)
ANY_USE = "current_workspace_manager().get_simultaneous(...)"

reserves = builder_init.contains("self._reserve_workspace()")
# All of vllm-project/vllm#44053: the builder reserves for decode and for continuations, and both use the workspace.
reserved_as_in_0_24 = (
    reserves
    & reserve_workspace.contains(f"{ANY_USE}\n...\n{ANY_USE}")
    & continuation.contains(ANY_USE)
    & decode.contains(ANY_USE)
)
# Nothing in the builder reserves, neither so nor otherwise; the overlay is not stacked on another reservation.
nothing_reserved = ~reserves & ~shared.reserved_by_upstream


def needed(use: Use) -> Need:
    """Return whether the use continues prompts from TurboQuant's KV cache."""
    if not use.turboquant:
        return Need(needed=False, because=f"the KV cache is {use.kv_cache_dtype}, which other kernels read")
    return Need(needed=True, because=f"a prompt of more than {use.chunk:,} tokens goes on from TurboQuant's KV cache")


overlay = Overlay(
    summary="TurboQuant's buffers in the shared workspace, reserved before it is locked.",
    symptoms=(
        "AssertionError: Workspace is locked but allocation from 'turboquant_attn.py:...' requires ... MB, "
        "current size is ... MB. Workspace growth is not allowed after locking.",
        "On vLLM 0.20, GPU memory in use grows by gigabytes with the longest prompt so far, and is never released.",
    ),
    upstream=("vllm-project/vllm#44053", "vllm-project/vllm#40798"),
    needed=needed,
    releases={
        ">=0.18,<0.20": "not_applicable: there is no TurboQuant KV cache yet",
        ">=0.20,<0.21": "pending: each layer dequantizes into buffers of its own, which grow with the prompt",
        ">=0.21,<0.24": "pending: the shared workspace is used, and locked before it is large enough",
        ">=0.24": "pending: without chunked prefill, nothing is reserved to go on from a cached prefix",
    },
    probes=(probe(shared.PROBES, "turboquant_workspace"),),
    parts=(
        Part(
            "workspace",
            upstream=("vllm-project/vllm#44053",),
            absent=shared.no_turboquant,
            shapes={
                "0.24": Shape(
                    when=reserved_as_in_0_24,
                    edits=[
                        reserve_workspace.patch(for_cached_prefixes),
                        reserve_workspace.patch(for_any_layer),
                        locked,
                        helper.import_into(attention, "continues_prompts, query_heads, scratch"),
                    ],
                ),
                "0.21": Shape(
                    when=nothing_reserved & shared.knows_speculation,
                    edits=[reservation, shared.refusal, locked],
                ),
                "0.20": Shape(
                    when=nothing_reserved,
                    edits=[reservation, continuation.patch(in_scratch_from_growing_buffers)],
                ),
            },
        ),
    ),
)
