"""States of hybrid models with speculative decoding: copied without races, and read from the request's own row.

Layers such as Gated DeltaNet keep a state for each request and each draft token. `num_accepted_tokens`, the number of
tokens that the last step accepted, selects the state to go on from. This overlay hardens the kernels that copy and read
these states.

Parts `overlap`: for prefix caching, vLLM keeps the state at each block boundary. To do so it shifts the window of the
convolution to the left within one block, so that source and destination overlap. Up to 0.28 the kernels copy chunk by
chunk without a barrier: one warp can overwrite bytes of a chunk that another warp has yet to load, and the window is
silently wrong. With the overlay, a copy that overlaps waits, chunk by chunk, until all warps have loaded. One barrier a
chunk is enough: the destination lies below the source, so no store reaches the bytes of a later chunk. Other copies
have no barrier. Where the shift is a whole number of chunks, stock copies are right, too, for each thread then
overwrites only what it has loaded itself. With chunks of 1,024 bytes, a token of 10,240 channels in 16 bits is 20
chunks on one GPU, where stock is right, and 2.5 on each of eight, where it is not. The tiled kernel of 0.28 has chunks
of 8,192 bytes, and is wrong on one GPU, too.

Parts `bounds`: the kernels use `num_accepted_tokens - 1` as an index, unchecked. For 0, or more than the draft tokens
plus one, the kernels of Gated DeltaNet take the index of another request's state, or a number that is no index, and the
convolution begins outside of its window. The overlay clamps the index to the request's own row, or window, as
upstream's kernels for Bailing and Qwen4 models do. With CUDA graphs, a row has a column for each token of a step.
Without them it is a row of the block table, which may be longer: there the upper bound only keeps the index within the
row. For numbers in range, and without speculation, nothing changes.

This is hardening, not a cure for the illegal memory accesses that users report with speculative decoding on hybrid
models. Their cause is not known, and neither is a path that leads to a number out of range. By the code, an overlapping
copy gives wrong bytes, not wrong addresses. One user still had these accesses with the bound of #50021, which is like
this one. Mamba2's kernel (`mamba_ssm.py`) has the lower bound already, and is left as it is.
"""

from vpatch import Block, Edits, File, Need, Overlay, Part, Use, probe

from vpatch_overlays import _shared as shared

copies = File("vllm/v1/worker/mamba_utils.py")
memcpy = copies.function("batch_memcpy_kernel")
fused = copies.function("postprocess_mamba_fused_kernel")
state_block = copies.function("_copy_mamba_state_block")
tiled = copies.function("_memcpy_u64_tiled")

OPEN = ("vllm-project/vllm#50021", "vllm-project/vllm#48475")  # pull requests with bounds

registry = File("vllm/model_executor/models/registry.py")
conv1d = File("vllm/model_executor/layers/mamba/ops/causal_conv1d.py").function("_causal_conv1d_update_kernel")

# If the destination overlaps the source from below, a chunk is stored once all warps have loaded it.
by_block = """
 for i in range(0, size, BLOCK_SIZE):
     ...
     data = tl.load(curr_src_ptr, mask=mask)
+    if (dst_ptr < src_ptr) & (src_ptr < dst_ptr + size):
+        tl.debug_barrier()
     tl.store(curr_dst_ptr, data, mask=mask)
"""
# For windows whose first dimension is the channel. `@@ / A / B` leads to block B in block A.
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
# 0.22 has no copy by rows: these neighbors distinguish it from the releases that have one.
only_by_chunk = f"""
 if src_block_idx == dest_block_idx and accept_token_bias == 0:
     return
 offsets = tl.arange(0, COPY_BLOCK_SIZE)
{by_chunk}"""
# 0.28 copies words of 8 bytes, or bytes if the two addresses are not aligned alike. One program copies a whole window.
# (Larger states are split among programs, which a barrier does not join; they never overlap.)
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

# #50729 in the fused kernel: the outermost loop is over tokens. Each lane keeps its place in every token, and so
# overwrites only what it has loaded itself.
TOKENS_IN_ORDER = "for token_idx in range(0, num_dst_tokens):\n    src_token = ...\n    ..."
ROWS_IN_ORDER = "for token_idx in range(0, num_dst_tokens):\n    for row_base in ...:\n        ..."

# The column of the state indices stays within the row, whose stride is its number of columns.
in_row = """
 if IS_SPEC_DECODING:
     $AT = tl.load(num_accepted_tokens + i_n).to(tl.int64) - 1
+    $AT = tl.minimum(tl.maximum($AT, 0), stride_indices_seq - 1)
 else:
     $AT = 0
 $STATE = tl.load($STATES + i_n * stride_indices_seq + $AT).to(tl.int64)
"""
# At first, `seqlen` is the longest query of the batch: the draft tokens plus one. With `IS_VARLEN`, the kernel then
# replaces it by the length of this request's query. A bare `@@` begins another hunk.
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


def gated_delta_net(folder: str) -> Edits:
    """Bound the index in the kernels of Gated DeltaNet in `folder`, and in that of its convolution."""
    recurrent = File(f"{folder}/fused_recurrent.py").function("fused_recurrent_gated_delta_rule_fwd_kernel")
    gating = File(f"{folder}/fused_sigmoid_gating.py").function("fused_sigmoid_gating_delta_rule_update_kernel")
    return recurrent.patch(in_row), gating.patch(in_row), conv1d.patch(in_window)


def on_nvidia_and_amd(folder: str, kernel: str) -> tuple[Block, Block]:
    """Return a model's kernels for the GPUs of NVIDIA and of AMD."""
    path = "vllm/models/{}/{}/ops/third_party/kda/fused_recurrent.py"
    return File(path.format(folder, "nvidia")).function(kernel), File(path.format(folder, "amd")).function(kernel)


kimi_k3 = on_nvidia_and_amd("kimi_k3", "fused_recurrent_kda_fwd_kernel")
glm5_next = on_nvidia_and_amd("glm5next", "fused_recurrent_gated_delta_rule_fwd_kernel")


def needed(use: Use) -> Need:
    """Return whether the use goes on from states that the number of accepted tokens selects."""
    because = f"{use.speculative_tokens} draft tokens a step select and shift states unchecked"
    return shared.not_speculating_hybrid(use) or Need(needed=True, because=because)


overlay = Overlay(
    summary="States of hybrid models with speculative decoding: copied without races, read from the request's own row.",
    symptoms=(
        "A hybrid model with speculative decoding and prefix caching gives wrong tokens at random, without an error.",
    ),
    upstream=("vllm-project/vllm#50729", *OPEN),
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
            # A barrier right before the store is #50729. The overlay's own stands there, too, but with its mark, by
            # which vpatch takes the part for applied before it asks for this.
            merged=memcpy.contains("if ...:\n    tl.debug_barrier()\ntl.store(curr_dst_ptr, data, mask=mask)"),
            shapes={"0.18": memcpy.patch(by_block)},
        ),
        Part(
            "overlap-fused",
            upstream=("vllm-project/vllm#50729",),
            # #50729 did without a barrier here: both copies, by rows and by chunks, loop over tokens.
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
            upstream=OPEN,
            shapes={
                "0.26": gated_delta_net("vllm/third_party/flash_linear_attention/ops"),
                "0.18": gated_delta_net("vllm/model_executor/layers/fla/ops"),
            },
        ),
        Part(
            "bounds-kimi-k3",
            upstream=OPEN,
            # The list of models, not the file of the kernel, so that a kernel that moved is drifted.
            absent=(~registry.lists("_MULTIMODAL_MODELS", "KimiK3*")).means("this vLLM has no Kimi K3"),
            shapes={"0.27": [kernel.patch(in_row) for kernel in kimi_k3]},
        ),
        Part(
            "bounds-glm5-next",
            upstream=OPEN,
            absent=(~registry.lists("_TEXT_GENERATION_MODELS", "Glm5Next*")).means("this vLLM has no GLM-5-Next"),
            shapes={"0.30": [kernel.patch(in_row) for kernel in glm5_next]},
        ),
    ),
)
