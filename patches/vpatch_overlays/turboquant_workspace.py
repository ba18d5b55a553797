"""TurboQuant's continuation prefill and decode: in the shared workspace, reserved before it is locked.

To go on with a prompt of which a part is cached, TurboQuant dequantises that part. vLLM 0.20 does so into buffers of
each layer, which grow with the prompt and stay: 5 GiB for Qwen3.6-35B-A3B at 262,144 tokens, 16 GiB for the 27B. From
0.21 on all layers share vLLM's workspace. Nobody makes it large enough before it is locked, so that the first long
prompt (with speculative decoding the first decode) ends in "Workspace is locked".

The metadata builder now reserves what 0.24 reserves, on every release: the larger of what decode takes for
`max_num_seqs` requests and of what a continuation takes for `max_model_len` tokens (512 MiB and 1 GiB for these two
models). On 0.20 decode has buffers of its own; its part is reserved all the same, so that one size holds everywhere,
and at most one layer's worth is lost. Where the reservation does not serve (a prefix-cache hit with chunked prefill
off, the second micro-batch), a call gets memory for as long as it runs, where 0.24 still raises the error.

As in 0.24, vLLM's memory profiling does not count the reservation.

From 0.21 on, "Workspace is locked" also stopped TurboQuant with speculative decoding, which computes wrong attention in
two cases: in CUDA graphs of whole decode steps, and with asynchronous scheduling, the default with MTP and EAGLE. In
these cases a patched 0.21 to 0.23 refuses to start, and names what helps: `enforce_eager`, `async_scheduling` off,
another KV cache type. Everything else starts, eager ngram speculation among it.
"""

from vpatch import (
    AddFunction,
    All,
    Contains,
    EnsureImport,
    InsertAfter,
    Lists,
    Need,
    Not,
    Overlay,
    Part,
    ReplaceExpr,
    ReplaceStatements,
    Shape,
    Use,
    companion,
    probe,
)

from vpatch_overlays._speculation import NOTE, builder_base, knows_speculation, refusal

ATTENTION = "vllm/v1/attention/backends/turboquant_attn.py"
CACHE_CONFIG = "vllm/config/cache.py"

BUILDER = "TurboQuantMetadataBuilder"
INIT = f"{BUILDER}.__init__"
CONTINUATION = "TurboQuantAttentionImpl._continuation_prefill"
DECODE = "TurboQuantAttentionImpl._decode_attention"

RESERVE_WORKSPACE = '''
def _reserve_workspace(self) -> None:
    """Make the shared workspace as large as TurboQuant will want it. It is locked once CUDA graphs are captured."""
    if is_workspace_manager_initialized():
        reserve_workspace(self, current_workspace_manager(), _CONTINUATION_DECODE_THRESHOLD)
'''

GROWTH = """
k_buf = getattr(layer, "_tq_k_dequant_buf", None)
if k_buf is None or k_buf.shape[2] < alloc_len:
    k_buf = torch.empty(buf_shape, dtype=torch.float16, device=device)
    v_buf = torch.empty(buf_shape, dtype=torch.float16, device=device)
    layer._tq_k_dequant_buf = k_buf
    layer._tq_v_dequant_buf = v_buf
else:
    v_buf = layer._tq_v_dequant_buf
"""

# vLLM's tests of the kernels make no workspace.
INTO_SCRATCH = """
k_buf, v_buf = scratch(
    current_workspace_manager() if is_workspace_manager_initialized() else None,
    device,
    (buf_shape, torch.float16),
    (buf_shape, torch.float16),
)
"""

KEYS_AND_VALUES = "(buf_shape, torch.float16), (buf_shape, torch.float16)"
PARTIAL_RESULTS = "((B, Hq, S, D + 1), torch.float32), ((B, Hq, D), query.dtype), ((B, Hq), torch.float32)"

ANY_USE = "current_workspace_manager().get_simultaneous(...)"

reservation = (
    EnsureImport(
        ATTENTION, "from vllm.v1.worker.workspace import current_workspace_manager, is_workspace_manager_initialized"
    ),
    EnsureImport(ATTENTION, "from vllm._vpatch.turboquant_workspace import reserve_workspace, scratch"),
    AddFunction(ATTENTION, BUILDER, RESERVE_WORKSPACE),
    InsertAfter(ATTENTION, INIT, anchor="self._init_reorder_batch_threshold(...)", new="self._reserve_workspace()"),
    companion("vpatch_overlays.companions", "turboquant_workspace"),
)
nothing_reserved = All(
    (Not(Contains(ATTENTION, INIT, "self._reserve_workspace()")), Not(Contains(ATTENTION, BUILDER, ANY_USE)))
)


def needed(use: Use) -> Need:
    """Say whether a use goes on with prompts in TurboQuant's KV cache."""
    if not use.turboquant:
        return Need(needed=False, because=f"the KV cache is {use.kv_cache_dtype}, which other kernels read")
    return Need(needed=True, because=f"a prompt of more than {use.chunk:,} tokens goes on from TurboQuant's KV cache")


overlay = Overlay(
    summary="TurboQuant's buffers in the shared workspace, reserved before it is locked.",
    upstream=("vllm-project/vllm#44053", "vllm-project/vllm#40798"),
    needed=needed,
    releases={
        ">=0.18,<0.20": "not_applicable: there is no TurboQuant KV cache yet",
        ">=0.20,<0.21": "pending: each layer dequantises into buffers of its own, which grow with the prompt",
        ">=0.21,<0.24": "pending: the shared workspace is used, and locked before it is large enough",
        ">=0.24": "merged: #44053",
    },
    probes=(probe("vpatch_overlays.probes", "turboquant_workspace"),),
    parts=(
        Part(
            name="workspace",
            upstream=("vllm-project/vllm#44053",),
            merged=All(
                (
                    Contains(ATTENTION, INIT, "self._reserve_workspace()"),
                    Contains(ATTENTION, f"{BUILDER}._reserve_workspace", f"{ANY_USE}\n...\n{ANY_USE}"),
                    Contains(ATTENTION, CONTINUATION, ANY_USE),
                    Contains(ATTENTION, DECODE, ANY_USE),
                )
            ),
            absent=Not(Lists(CACHE_CONFIG, "CacheDType", "turboquant_*")),
            shapes=(
                Shape(
                    name="0.21",
                    when=All((nothing_reserved, knows_speculation)),
                    note=NOTE,
                    edits=(
                        *reservation,
                        *refusal,
                        ReplaceExpr(
                            ATTENTION,
                            CONTINUATION,
                            old=f"current_workspace_manager().get_simultaneous({KEYS_AND_VALUES})",
                            new=f"scratch(current_workspace_manager(), device, {KEYS_AND_VALUES})",
                        ),
                        ReplaceExpr(
                            ATTENTION,
                            DECODE,
                            old=f"current_workspace_manager().get_simultaneous({PARTIAL_RESULTS})",
                            new=f"scratch(current_workspace_manager(), query.device, {PARTIAL_RESULTS})",
                        ),
                    ),
                ),
                Shape(
                    name="0.20",
                    when=All((nothing_reserved, builder_base)),
                    edits=(
                        *reservation,
                        ReplaceStatements(
                            ATTENTION,
                            CONTINUATION,
                            old=GROWTH,
                            new=INTO_SCRATCH,
                        ),
                    ),
                ),
            ),
        ),
    ),
)
