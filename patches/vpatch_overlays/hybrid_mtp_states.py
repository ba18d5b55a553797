"""States of hybrid models with speculative decoding: copied in order, and read from the request's own row.

Layers such as Gated DeltaNet keep a state for each request and each draft token. The number of tokens that the last
step accepted selects the state to go on from. This overlay hardens the kernels that read and copy these states.

Parts `overlap`: to keep the state at a block boundary, vLLM shifts the window of the convolution to the left within
one block. Up to 0.28 the kernels copy it as `memcpy` does: one warp can overwrite bytes that another has yet to read,
and the window is silently wrong. If a copy overlaps, the kernels now wait for each chunk until all warps have read it.
One barrier suffices, for a chunk is stored below everything that is still to be read. Other copies have no barrier. A
chunk has 1,024 bytes, in a kernel of 0.28 8,192. Where a token's channels fill whole chunks, each thread overwrites
only what it has read itself, and stock copies are right, too: of 10,240 channels in 16 bits, one GPU has 20 chunks,
each of eight GPUs 2.5.

Parts `bounds`: the kernels use the number minus one as an index, unchecked. For 0, or more than the draft tokens plus
one, they read another request's state, or memory that is no state. The index now stays in the request's own row: at
least 0, at most the last column, as in upstream's kernels for Bailing and Qwen4 models. Without CUDA graphs the row is
one of the block table, and its last column is the table's. For numbers in range, and without speculation, nothing
changes.

This is hardening, not a cure for the illegal memory accesses that users report with speculative decoding on hybrid
models. Their cause is not known. By the code, an overlapping copy gives wrong bytes, not wrong addresses; another
request's number is in range, too, and selects a state of the request's own row. In a report these accesses went on
with a bound like this one. Mamba2's kernel (`mamba_ssm.py`) has the lower bound already; the overlay adds no upper one.
"""

from vpatch import Block, Edits, File, Need, Overlay, Part, Use, probe

from vpatch_overlays import _shared as shared

copies = File("vllm/v1/worker/mamba_utils.py")
memcpy = copies.function("batch_memcpy_kernel")
fused = copies.function("postprocess_mamba_fused_kernel")
state_block = copies.function("_copy_mamba_state_block")
tiled = copies.function("_memcpy_u64_tiled")

registry = File("vllm/model_executor/models/registry.py")
conv1d = File("vllm/model_executor/layers/mamba/ops/causal_conv1d.py").function("_causal_conv1d_update_kernel")

# A copy that shifts bytes to the left waits until all warps have read a chunk, before the chunk is stored.
by_block = """
 for i in range(0, size, BLOCK_SIZE):
     ...
     data = tl.load(curr_src_ptr, mask=mask)
+    if (dst_ptr < src_ptr) & (src_ptr < dst_ptr + size):
+        tl.debug_barrier()
     tl.store(curr_dst_ptr, data, mask=mask)
"""
by_row = """
@@ / if CONV_STATE_DIM_FIRST and is_conv_state / for d in range(0, dim_rows)
 for i in range(0, per_row_bytes, COPY_BLOCK_SIZE):
     ...
     data = tl.load(curr_src, mask=mask)
+    if (row_dst < row_src) & (row_src < row_dst + per_row_bytes):
+        tl.debug_barrier()
     tl.store(curr_dst, data, mask=mask)
"""
by_chunk = """
 for i in range(0, copy_size, COPY_BLOCK_SIZE):
     ...
     data = tl.load(curr_src, mask=mask)
+    if (dst_addr < src_addr) & (src_addr < dst_addr + copy_size):
+        tl.debug_barrier()
     tl.store(curr_dst, data, mask=mask)
"""
# Without a copy by rows before it.
only_by_chunk = f"""
 if src_block_idx == dest_block_idx and accept_token_bias == 0:
     return
 offsets = tl.arange(0, COPY_BLOCK_SIZE)
{by_chunk}"""
# Only windows overlap, and they are one tile.
by_tile = """
 for i in range(tile_start, tile_end, COPY_BLOCK_SIZE):
     ...
     data = tl.load($FROM + i + offsets, mask=mask)
+    if (dst_addr_i < src_addr_i) & (src_addr_i < dst_addr_i + copy_size):
+        tl.debug_barrier()
     tl.store($TO + i + offsets, data, mask=mask)
"""
by_tiles = (
    tiled.patch(by_tile, FROM="src_body_u64", TO="dst_body_u64"),
    tiled.patch(by_tile, FROM="src_u8", TO="dst_u8"),
)

# Upstream's order: each lane has the same place in every token, and so overwrites only what it has read itself.
TOKENS_IN_ORDER = "for token_idx in range(0, num_dst_tokens):\n    src_token = ...\n    ..."
ROWS_IN_ORDER = "for token_idx in range(0, num_dst_tokens):\n    for row_base in ...:\n        ..."

# The column of the state indices stays within the request's row.
in_row = """
 if IS_SPEC_DECODING:
     $AT = tl.load(num_accepted_tokens + i_n).to(tl.int64) - 1
+    $AT = tl.minimum(tl.maximum($AT, 0), stride_indices_seq - 1)
 else:
     $AT = 0
 $STATE = tl.load($STATES + i_n * stride_indices_seq + $AT).to(tl.int64)
"""
# The kernel changes `seqlen`, which is the longest possible query before, and so the number of drafts plus one.
in_window = """
+max_accepted = seqlen
 if IS_VARLEN:
     ...
 else:
     ...
@@
 if IS_SPEC_DECODING:
     $AT = tl.load(num_accepted_tokens_ptr + idx_seq).to(tl.int64) - 1
+    $AT = tl.minimum(tl.maximum($AT, 0), max_accepted - 1)
 else:
     $AT = 0
"""


def delta_rule(folder: str) -> Edits:
    """Bound the kernels of Gated DeltaNet in `folder`, and that of the convolution."""
    recurrent = File(f"{folder}/fused_recurrent.py").function("fused_recurrent_gated_delta_rule_fwd_kernel")
    gating = File(f"{folder}/fused_sigmoid_gating.py").function("fused_sigmoid_gating_delta_rule_update_kernel")
    return recurrent.patch(in_row), gating.patch(in_row), conv1d.patch(in_window)


def of_model(folder: str, kernel: str) -> tuple[Block, Block]:
    """Return a model's kernels for the GPUs of NVIDIA and of AMD."""
    path = "vllm/models/{}/{}/ops/third_party/kda/fused_recurrent.py"
    return File(path.format(folder, "nvidia")).function(kernel), File(path.format(folder, "amd")).function(kernel)


kimi_k3 = of_model("kimi_k3", "fused_recurrent_kda_fwd_kernel")
glm5_next = of_model("glm5next", "fused_recurrent_gated_delta_rule_fwd_kernel")


def needed(use: Use) -> Need:
    """Return whether the use goes on from states that the number of accepted tokens selects."""
    because = f"{use.speculative_tokens} draft tokens a step select and shift states unchecked"
    return shared.not_speculating_hybrid(use) or Need(needed=True, because=because)


overlay = Overlay(
    summary="States of hybrid models with speculative decoding: copied in order, read from the request's own row.",
    symptoms=(
        "A hybrid model with speculative decoding and prefix caching gives wrong tokens at random, without an error.",
    ),
    upstream=("vllm-project/vllm#50729", "vllm-project/vllm#50021", "vllm-project/vllm#48475"),
    needed=needed,
    releases={
        ">=0.18,<0.22": "pending: windows are copied as memcpy does, and the accepted tokens are an unchecked index",
        ">=0.22,<0.29": "pending: the same, and one kernel decides and copies on the GPU",
        ">=0.29": "pending: #50729 is merged, and the accepted tokens are still an unchecked index",
    },
    probes=(probe(shared.PROBES, "hybrid_mtp_states"),),
    parts=(
        Part(
            "overlap",
            upstream=("vllm-project/vllm#50729",),
            merged=memcpy.contains("if ...:\n    tl.debug_barrier()\ntl.store(curr_dst_ptr, data, mask=mask)"),
            shapes={"0.18": memcpy.patch(by_block)},
        ),
        Part(
            "overlap-fused",
            upstream=("vllm-project/vllm#50729",),
            merged=state_block.contains(ROWS_IN_ORDER) & state_block.contains(TOKENS_IN_ORDER),
            absent=(~copies.defines("postprocess_mamba_fused_kernel")).means("this vLLM copies states from the host"),
            shapes={
                "0.28": [state_block.patch(by_row), by_tiles],
                "0.25": [state_block.patch(by_row), state_block.patch(by_chunk)],
                "0.24": [fused.patch(by_row), fused.patch(by_chunk)],
                "0.22": fused.patch(only_by_chunk),
            },
        ),
        Part(
            "bounds",
            shapes={
                "0.26": delta_rule("vllm/third_party/flash_linear_attention/ops"),
                "0.18": delta_rule("vllm/model_executor/layers/fla/ops"),
            },
        ),
        Part(
            "bounds-kimi-k3",
            absent=(~registry.lists("_MULTIMODAL_MODELS", "KimiK3*")).means("this vLLM has no Kimi K3"),
            shapes={"0.27": [kernel.patch(in_row) for kernel in kimi_k3]},
        ),
        Part(
            "bounds-glm5-next",
            absent=(~registry.lists("_TEXT_GENERATION_MODELS", "Glm5Next*")).means("this vLLM has no GLM-5-Next"),
            shapes={"0.30": [kernel.patch(in_row) for kernel in glm5_next]},
        ),
    ),
)
