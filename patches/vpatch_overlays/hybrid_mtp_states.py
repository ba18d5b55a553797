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

from vpatch import Block, Edits, File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared

copies = File("vllm/v1/worker/mamba_utils.py")
memcpy = copies.function("batch_memcpy_kernel")
fused = copies.function("postprocess_mamba_fused_kernel")
state_block = copies.function("_copy_mamba_state_block")
tiled = copies.function("_memcpy_u64_tiled")

registry = File("vllm/model_executor/models/registry.py")
conv1d = File("vllm/model_executor/layers/mamba/ops/causal_conv1d.py").function("_causal_conv1d_update_kernel")

# Exactly upstream's code: with another bound in it, the part is drifted, and gets no second one.
UNBOUNDED = """
if IS_SPEC_DECODING:
    i_t = tl.load(num_accepted_tokens + i_n).to(tl.int64) - 1
else:
    i_t = 0
state_idx = tl.load(ssm_state_indices + i_n * stride_indices_seq + i_t).to(tl.int64)
"""
UNBOUNDED_KIMI_K3 = """
if IS_SPEC_DECODING:
    initial_token = tl.load(num_accepted_tokens + i_n).to(tl.int64) - 1
else:
    initial_token = 0
state_index = tl.load(state_indices + i_n * stride_indices_seq + initial_token).to(tl.int64)
"""
UNBOUNDED_CONV = """
if IS_SPEC_DECODING:
    conv_state_token_offset = tl.load(num_accepted_tokens_ptr + idx_seq).to(tl.int64) - 1
else:
    conv_state_token_offset = 0
"""
BY_ROW = (
    *("if CONV_STATE_DIM_FIRST and is_conv_state", "for d in range(0, dim_rows)"),
    "for i in range(0, per_row_bytes, COPY_BLOCK_SIZE)",
)
BY_CHUNK = "for i in range(0, copy_size, COPY_BLOCK_SIZE)"
SAME_ALIGNMENT = "if ((src_addr_i ^ dst_addr_i) & 7) == 0"

# Upstream's order: each lane has the same place in every token, and so overwrites only what it has read itself.
TOKENS_IN_ORDER = "for token_idx in range(0, num_dst_tokens):\n    src_token = ...\n    ..."
ROWS_IN_ORDER = "for token_idx in range(0, num_dst_tokens):\n    for row_base in ...:\n        ..."

SPLIT = "if IS_VARLEN:\n    ...\nelse:\n    ..."


def ordered(loop: Block, reads: str, writes: str, source: str, target: str, size: str) -> Edits:
    """Wait until all warps have read a chunk before it is stored, if the copy shifts bytes to the left.

    Args:
        loop: the loop over the chunks of a copy.
        reads: the pointers from which it loads a chunk.
        writes: the pointers to which it stores the chunk.
        source: the variable with the address to copy from.
        target: the variable with the address to copy to.
        size: the variable with the number of bytes to copy.
    """
    load, store = f"data = tl.load({reads}, mask=mask)\n", f"tl.store({writes}, data, mask=mask)\n"
    overlaps = f"if ({target} < {source}) & ({source} < {target} + {size}):\n    tl.debug_barrier()\n"
    return loop.replace_statements(load + store, load + overlaps + store)


def ordered_rows(kernel: Block) -> Edits:
    """Order the copy of a window in which each channel has a row of its own."""
    return ordered(kernel.within(*BY_ROW), "curr_src", "curr_dst", "row_src", "row_dst", "per_row_bytes")


def ordered_bytes(kernel: Block, *headers: str) -> Edits:
    """Order the copy of a window, or of the whole state, as bytes in one piece."""
    return ordered(kernel.within(*headers, BY_CHUNK), "curr_src", "curr_dst", "src_addr", "dst_addr", "copy_size")


def ordered_tile(kind: str, *headers: str) -> Edits:
    """Order a branch of the copy of a tile; only windows overlap, and they are one tile."""
    loop = tiled.within(*headers, "for i in range(tile_start, tile_end, COPY_BLOCK_SIZE)")
    reads, writes = (f"{side}_{kind} + i + offsets" for side in ("src", "dst"))
    return ordered(loop, reads, writes, "src_addr_i", "dst_addr_i", "copy_size")


def in_row(kernel: Block, load: str, index: str, columns: str, *headers: str) -> Edits:
    """Keep an index, which `load` makes of the number of accepted tokens, within the columns of the request's row."""
    bounded = f"{index} = tl.minimum(tl.maximum({index}, 0), {columns} - 1)"
    return kernel.within(*headers, "if IS_SPEC_DECODING").insert_after(load, bounded)


def recurrent(kernel: Block) -> Edits:
    """Bound the column of the state indices that a kernel of the delta rule reads."""
    load = "i_t = tl.load(num_accepted_tokens + i_n).to(tl.int64) - 1"
    return in_row(kernel, load, "i_t", "stride_indices_seq", "if USE_INITIAL_STATE", "if IS_CONTINUOUS_BATCHING")


def recurrent_kimi_k3(kernel: Block) -> Edits:
    """Bound the column of the state indices that a kernel of Kimi K3 reads."""
    load = "initial_token = tl.load(num_accepted_tokens + i_n).to(tl.int64) - 1"
    return in_row(kernel, load, "initial_token", "stride_indices_seq")


# The kernel changes `seqlen`, which is the longest possible query before, and so the number of drafts plus one.
convolution: Edits = (
    conv1d.insert_before(SPLIT, "max_accepted = seqlen"),
    in_row(
        conv1d,
        "conv_state_token_offset = tl.load(num_accepted_tokens_ptr + idx_seq).to(tl.int64) - 1",
        "conv_state_token_offset",
        "max_accepted",
    ),
)


def delta_rule(folder: str) -> Shape:
    """Return the shape with the kernels of Gated DeltaNet in `folder`."""
    kernels = (
        File(f"{folder}/fused_recurrent.py").function("fused_recurrent_gated_delta_rule_fwd_kernel"),
        File(f"{folder}/fused_sigmoid_gating.py").function("fused_sigmoid_gating_delta_rule_update_kernel"),
    )
    unbounded = [kernel.contains(UNBOUNDED) for kernel in kernels]
    return Shape(
        when=unbounded[0] & unbounded[1] & conv1d.contains(UNBOUNDED_CONV),
        edits=[map(recurrent, kernels), convolution],
    )


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
            shapes={
                "0.18": ordered(
                    memcpy.within("for i in range(0, size, BLOCK_SIZE)"),
                    *("curr_src_ptr", "curr_dst_ptr", "src_ptr", "dst_ptr", "size"),
                )
            },
        ),
        Part(
            "overlap-fused",
            upstream=("vllm-project/vllm#50729",),
            merged=state_block.contains(ROWS_IN_ORDER) & state_block.contains(TOKENS_IN_ORDER),
            absent=(~copies.defines("postprocess_mamba_fused_kernel")).means("this vLLM copies states from the host"),
            shapes={
                "0.28": [
                    ordered_rows(state_block),
                    ordered_tile("body_u64", SAME_ALIGNMENT),
                    ordered_tile("u8", SAME_ALIGNMENT, "else"),
                ],
                "0.26": [ordered_rows(state_block), ordered_bytes(state_block, "if is_conv_state")],
                "0.25": [ordered_rows(state_block), ordered_bytes(state_block)],
                "0.24": [ordered_rows(fused), ordered_bytes(fused)],
                "0.22": Shape(when=~fused.takes("CONV_STATE_DIM_FIRST"), edits=ordered_bytes(fused)),
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
            shapes={
                "0.27": Shape(
                    when=kimi_k3[0].contains(UNBOUNDED_KIMI_K3) & kimi_k3[1].contains(UNBOUNDED_KIMI_K3),
                    edits=map(recurrent_kimi_k3, kimi_k3),
                )
            },
        ),
        Part(
            "bounds-glm5-next",
            absent=(~registry.lists("_TEXT_GENERATION_MODELS", "Glm5Next*")).means("this vLLM has no GLM-5-Next"),
            shapes={
                "0.30": Shape(
                    when=glm5_next[0].contains(UNBOUNDED) & glm5_next[1].contains(UNBOUNDED),
                    edits=map(recurrent, glm5_next),
                )
            },
        ),
    ),
)
