"""Speculative decoding with `PIECEWISE` CUDA graphs on hybrid models: graphs have whole verification steps.

A step that verifies k drafts brings 1 + k tokens of each request. The V1 model runner rounds `cudagraph_capture_sizes`
to multiples of 1 + k if decode steps have `FULL` graphs, and leaves them if all graphs are `PIECEWISE`: with
`--compilation-config '{"cudagraph_mode": "PIECEWISE"}'`, and where vLLM lowers the mode because an attention backend
cannot verify drafts in a `FULL` graph, as FlashInfer with an FP8 KV cache on some GPUs, and TurboQuant with
`turboquant-mtp`. Users report that hybrid models then die of an illegal memory access at the first request
(vllm-project/vllm#46324).

The overlay rounds the sizes in both modes, by vLLM's own function. There are fewer graphs then: 4, 8, 16, 24 in place
of 1, 2, 4, 8, 16, 24 with three drafts. Without speculative decoding nothing changes. The V2 model runner chooses sizes
by itself.
"""

from vpatch import Edits, File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared
from vpatch_overlays._shared import runner

compilation = File("vllm/config/compilation.py")
resolve = compilation.function("CompilationConfig.resolve_cudagraph_mode_and_sizes")
settle = runner.function("GPUModelRunner._check_and_update_cudagraph_mode")

ROUNDED = """
if {}cudagraph_mode.decode_mode() == CUDAGraphMode.FULL and uniform_decode_query_len > 1:
    self.adjust_cudagraph_sizes_for_spec_decode(...)
"""
# vLLM rounds the sizes for `FULL` graphs alone. From 0.25 on it leaves out the V2 runner, which prepares its graphs in
# another way (vllm-project/vllm#45953).
only_full = resolve.contains(ROUNDED.format("")) | resolve.contains(ROUNDED.format("not use_v2_model_runner and "))
# The function that rounds takes the number of tensor-parallel ranks, too: up to 0.31.
by_tensor_parallel = compilation.function("CompilationConfig.adjust_cudagraph_sizes_for_spec_decode").takes(
    "tensor_parallel_size"
)

in_multiples = """
 {}
+if cudagraph_mode == CUDAGraphMode.PIECEWISE and self.uniform_decode_query_len > 1:
+    self.compilation_config.adjust_cudagraph_sizes_for_spec_decode($ARGS)
"""
RESOLVED = "cudagraph_mode = self.compilation_config.resolve_cudagraph_mode_and_sizes(...)"
# Up to 0.19, the runner itself rounds them.
BY_RUNNER = """if (
     cudagraph_mode.decode_mode() == CUDAGraphMode.FULL
     and cudagraph_mode.separate_routine()
     and self.uniform_decode_query_len > 1
 ):
     self.compilation_config.adjust_cudagraph_sizes_for_spec_decode(...)"""
QUERY_LEN = "uniform_decode_query_len=self.uniform_decode_query_len"
AND_TENSOR_PARALLEL = f"{QUERY_LEN}, tensor_parallel_size=self.parallel_config.tensor_parallel_size"


def rounding(after: str, arguments: str) -> Edits:
    """Return the edit that rounds sizes behind the statement `after`."""
    return settle.patch(in_multiples.format(after), ARGS=arguments)


def needed(use: Use) -> Need:
    """Return whether the use verifies drafts in a hybrid model, whose graphs may all be `PIECEWISE`."""
    because = "PIECEWISE CUDA graphs whose sizes are not multiples of 1 + drafts are reported to crash"
    return shared.not_speculating_hybrid(use) or Need(needed=True, because=because)


overlay = Overlay(
    summary="MTP with PIECEWISE CUDA graphs on hybrid models: sizes are multiples of 1 + drafts.",
    symptoms=(
        "With MTP, a hybrid model (Qwen3.5, Qwen3.6) and PIECEWISE CUDA graphs, such as with an FP8 or NVFP4 KV cache,"
        " the engine dies at the first request: torch.AcceleratorError: CUDA error: an illegal memory access was"
        " encountered.",
    ),
    # A hybrid model with speculation, whose graphs are all `PIECEWISE`; the V2 runner prints no words before the mode.
    beside=(
        "SpeculativeConfig(method",
        "attention page size is >= mamba page size",
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)",
    ),
    not_beside=("Capturing CUDA graphs (decode, FULL)",),
    upstream=("vllm-project/vllm#46324",),
    needed=needed,
    releases={
        ">=0.18,<0.29": "pending: sizes of PIECEWISE graphs are not rounded",
        ">=0.29": "pending: the same, on the V1 model runner only, as with VLLM_USE_V2_MODEL_RUNNER=0",
    },
    probes=(probe(shared.PROBES, "mtp_capture_sizes"),),
    parts=(
        Part(
            "sizes",
            shapes={
                "0.32": Shape(when=only_full & ~by_tensor_parallel, edits=rounding(RESOLVED, QUERY_LEN)),
                "0.20": Shape(when=only_full & by_tensor_parallel, edits=rounding(RESOLVED, AND_TENSOR_PARALLEL)),
                "0.18": Shape(when=by_tensor_parallel, edits=rounding(BY_RUNNER, AND_TENSOR_PARALLEL)),
            },
        ),
    ),
)
