"""TurboQuant's decode attention on tensor cores, opt-in.

vLLM's kernel decodes the KV cache once for each query head, without tensor cores, and looks each code up in global
memory: on an H200, with contexts of 16K and more, it takes 4 to 26 times as long as the kernels here, which decode it
once for each KV head. The cache stays as it is: it is vLLM's own format, and vLLM's kernel can read on where this one
stopped.

Results differ from vLLM's by rounding, as between any two attention kernels; so the overlay is opt-in.

- `attention`: decode steps, pieces of a prompt of up to 128 tokens, and drafts being verified take the new kernels.
  They cover all four presets, head sizes 64, 128 and 256, up to 16 query heads for each KV head, and pages of any
  multiple of 16 tokens. Everything else takes vLLM's kernel, and the log says why, once. All is compiled before the
  engine is ready. If that fails on some GPU, a warning says so, and vLLM's kernels stay in place. New keys get their
  norms and are rotated by one kernel, where vLLM has four, one of which takes 52 us for a single token.
- `buffers`: decode's part of the shared workspace shrinks to what the kernels need (541 MB to 17 MB for 1,024 requests
  of 32 heads of size 128), and is taken before vLLM sizes the KV cache.
- `reservation`: so does what vLLM reserves for decode, from 0.24 on.
- `drafts`: with `turboquant-mtp`, steps that verify up to eight drafts are decode steps, and CUDA graphs of whole steps
  (`FULL`) hold them. From vLLM 0.21 on.
- `flash-attention`: with TurboQuant, vLLM gives version 2 of flash attention to all layers that it does not quantize,
  and to prompts. On Hopper they keep version 3.

`VPATCH_TQ_DECODE=0` in the environment of vLLM turns all of it off. Launch parameters were measured on an H200 only:
`python -m benchmarks.decode --part tune` in a checkout of vpatch writes a file for your GPU, which
`VPATCH_TQ_DECODE_LAUNCHES` names.
"""

from vpatch import AnyOf, Companion, File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared
from vpatch_overlays._shared import (
    arg_utils,
    attention,
    build,
    builder,
    create_engine_config,
    decode,
    forward,
    impl_init,
    not_reserved_by_upstream,
    reserve_workspace,
)

launcher = File("vllm/v1/attention/ops/triton_turboquant_decode.py")
launch = launcher.function("triton_turboquant_decode_attention")
storing = File("vllm/v1/attention/ops/triton_turboquant_store.py")
store = storing.function("triton_turboquant_store")
warmup = File("vllm/model_executor/warmup/kernel_warmup.py")
kernel_warmup = warmup.function("kernel_warmup")
on_device = attention.function("TurboQuantAttentionImpl._ensure_on_device")
planned = File("vllm/v1/attention/backends/flash_attn.py").function("_get_sliding_window_configs")

NAMES = ("", "_codes", "_kernels", "_launch", "_queries", "_store", "_supported", "_switch")
KERNELS = tuple(f"turboquant_decode{name}" for name in NAMES)
switch = Companion(f"{shared.COMPANIONS}.turboquant_decode_switch")
dispatch = Companion(f"{shared.COMPANIONS}.turboquant_decode_dispatch", along=KERNELS)
buffers = Companion(f"{shared.COMPANIONS}.turboquant_decode_buffers", along=(*KERNELS, "turboquant_decode_drafts"))
drafts = Companion(f"{shared.COMPANIONS}.turboquant_decode_drafts", along=KERNELS)

by_new_kernels = """
+decoded = decode_if_supported(
+    query,
+    kv_cache,
+    block_table,
+    seq_lens,
+    Pi,
+    centroids,
+    scale,
+    mse_bits,
+    key_packed_size,
+    value_quant_bits,
+    key_fp8=key_fp8,
+    norm_correction=norm_correction,
+    mid_o_buf=mid_o_buf,
+    output_buf=output_buf,
+)
+if decoded is not None:
+    return decoded
 B, Hq, D = query.shape
"""
by_one_kernel = """
-k_flat = key.float().reshape(NH, D)
-norms = k_flat.norm(dim=1, keepdim=True)
-x_hat = k_flat / (norms + 1e-8)
-y = x_hat @ PiT
+y, norms = normed_and_rotated(key, PiT)
"""

# Keys are rotated by a Hadamard matrix, as in every release so far; the new kernels compute its entries themselves.
rotates_by_hadamard = on_device.contains("H = _build_hadamard(D, str(device))\nlayer._tq_PiT = H\nlayer._tq_Pi = H")

# Flash attention 3 plans its work by its own layers, and passes over TurboQuant's. The second form is from 0.31 on.
passes_over_others = AnyOf(
    (
        planned.contains("if not isinstance(layer.impl, FlashAttentionImpl):\n    continue"),
        planned.contains("if isinstance(impl, FlashAttentionImpl):\n    ..."),
    )
)

sized = (
    impl_init.insert_before(
        "cfg = self.tq_config",
        "self._decode_need = need_of_layer(self)",
    ),
    decode.insert_after("S = self.max_num_kv_splits", "S = decode_splits(self, query, attn_metadata, S)"),
    forward.insert_before(
        "num_tokens = query.shape[0]",
        "if attn_metadata is None:\n    reserve_while_profiling(self, kv_cache, query)",
    ),
    buffers.import_into(attention, "decode_splits, need_of_layer, reserve_while_profiling, splits_to_reserve"),
)

THRESHOLD = '''
def _init_reorder_batch_threshold(self, reorder_batch_threshold=1, supports_spec_as_decode=False, **options) -> None:
    """Take steps that verify drafts for decode steps, if the decode kernels do."""
    decodes = supports_spec_as_decode or verifies(self.vllm_config)
    super()._init_reorder_batch_threshold(
        reorder_batch_threshold=reorder_batch_threshold, supports_spec_as_decode=decodes, **options
    )
'''
drafted = (
    builder.add_function(THRESHOLD),
    # Of a batch of decode steps alone, all tokens are theirs, whether it has several of a request or not.
    forward.replace_expression(
        "not attn_metadata.is_prefill", "not attn_metadata.is_prefill or num_decode_tokens == N"
    ),
    decode.insert_before(
        "mid_o_buf = output_buf = lse_buf = None",
        "attn_metadata = with_rows(self, query, kv_cache, attn_metadata)",
    ),
    drafts.import_into(attention, "verifies, with_rows"),
)
# `build` recognizes decode steps by this threshold, as in every release so far; THRESHOLD sets it.
by_threshold = build.contains("split_decodes_and_prefills(cam, decode_threshold=self.reorder_batch_threshold)")
# vLLM 0.20: `decode` takes nothing from the shared workspace.
own_buffers = (~decode.contains("current_workspace_manager()")).means(
    "this vLLM lets each layer have buffers of its own"
)

HOPPER, OLDEST = 9, (8, 0)  # compute capabilities: the one that was measured, and the least that the kernels take
MEASURED = (
    "opt-in: 1 to 32 requests of 16,384 tokens decoded 2.5 to 3.8 times as fast (H200, vLLM 0.20.2 to 0.26.0, a small "
    "dense model); results differ by rounding"
)


def needed(use: Use) -> Need:
    """Return what the overlay is for; vLLM starts without it."""
    if other := shared.not_turboquant(use):
        return other
    if use.capability and use.capability < OLDEST:
        return Need(needed=False, because="opt-in: its kernels need compute capability 8.0")
    measured = use.capability is not None and use.capability[0] == HOPPER
    because = MEASURED if measured else f"{MEASURED}; measured on Hopper only"
    return Need(needed=False, because=because, recommended=True)


overlay = Overlay(
    summary="TurboQuant's decode attention on tensor cores: several times as fast as vLLM's.",
    symptoms=(
        "With a TurboQuant KV cache, tokens come at half the speed of a bf16 or FP8 cache, or less, and the slower the "
        "longer the context.",
    ),
    upstream=("vllm-project/vllm#55610", "vllm-project/vllm#40858"),
    needed=needed,
    releases={
        ">=0.18,<0.20": "not_applicable: there is no TurboQuant KV cache yet",
        ">=0.20": "pending: one program for each query head, without tensor cores",
    },
    opt_in=True,
    probes=(probe(shared.PROBES, "turboquant_decode"),),
    parts=(
        Part(
            "attention",
            upstream=("vllm-project/vllm#55610",),
            # A kernel with tensor cores in vLLM's own launcher; no release has one.
            merged=launcher.contains("tl.dot(...)"),
            absent=shared.no_turboquant,
            shapes={
                "0.20": Shape(
                    when=rotates_by_hadamard,
                    edits=[
                        launch.patch(by_new_kernels),
                        dispatch.import_into(launcher, "decode_if_supported"),
                        store.patch(by_one_kernel),
                        dispatch.import_into(storing, "normed_and_rotated"),
                        kernel_warmup.insert_before("do_deep_gemm_warmup = $VALUE", "warm_up(worker)"),
                        dispatch.import_into(warmup, "warm_up"),
                    ],
                )
            },
        ),
        Part(
            "buffers",
            absent=shared.no_turboquant | own_buffers,
            shapes={"0.21": sized},
        ),
        # Not a second shape of `buffers`: a tree that lacks only this edit would match the first one, as applied.
        Part(
            "reservation",
            absent=shared.no_turboquant
            | own_buffers
            | not_reserved_by_upstream.means("this vLLM reserves no workspace for decode steps"),
            shapes={
                "0.24": reserve_workspace.insert_after(
                    "max_num_splits = self.vllm_config.attention_config.tq_max_kv_splits_for_cuda_graph",
                    "max_num_splits = splits_to_reserve(self, max_num_splits)",
                )
            },
        ),
        # Steps that verify drafts need what the part `buffers` sets.
        Part(
            "drafts",
            absent=shared.no_turboquant | own_buffers,
            shapes={"0.21": Shape(when=~own_buffers & by_threshold & shared.knows_speculation, edits=drafted)},
        ),
        Part(
            "flash-attention",
            absent=shared.no_turboquant,
            shapes={
                "0.20": Shape(
                    when=passes_over_others,
                    edits=[
                        create_engine_config.replace_expression(
                            "attention_config.flash_attn_version is None or attention_config.flash_attn_version >= 3",
                            "needs_flash_attention_2(attention_config.flash_attn_version)",
                        ),
                        switch.import_into(arg_utils, "needs_flash_attention_2"),
                    ],
                )
            },
        ),
    ),
)
