"""Custom all-reduce with `expandable_segments`: CUDA graphs are captured in memory that other ranks can map.

While CUDA graphs are captured, vLLM's custom all-reduce records the buffers that it reduces, and then shares their
addresses with the other ranks of the node by `cudaIpcGetMemHandle`. CUDA refuses that for memory of an allocator with
`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. The extension then ends the process, so that a worker dies without a
traceback, at the end of the capture.

The overlay turns expandable segments off while a group with custom all-reduce captures, and on again behind it, after
an error, too. It sets PyTorch's whole configuration each time, since PyTorch forgets what a new one does not name. All
else stays in expandable segments: weights, KV cache, and activations outside of CUDA graphs. Where the variable does
not name them, nothing is asked and nothing is set.

Without the patch, `--disable-custom-all-reduce` starts such a server, with slower reductions. On cards of 24 GB,
expandable segments are often what makes a model fit: do not unset them.
"""

from vpatch import Companion, File, Need, Overlay, Part, Use, probe

from vpatch_overlays import _shared as shared

groups = File("vllm/distributed/parallel_state.py")
capture = groups.function("GroupCoordinator.graph_capture")
helper = Companion(f"{shared.COMPANIONS}.custom_ar_expandable")


def needed(use: Use) -> Need:
    """Return whether several ranks share each layer; whether segments are expandable, only the environment tells."""
    if use.ranks == 1:
        return Need(needed=False, because="each layer is on one GPU, and nothing is reduced")
    return Need(
        needed=True, because=f"{use.ranks} GPUs reduce together, and their memory may be in expandable segments"
    )


overlay = Overlay(
    summary="Custom all-reduce under expandable_segments: CUDA graphs are captured in memory that ranks can share.",
    symptoms=(
        "With tensor parallelism and PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, a worker dies without a "
        "traceback when CUDA graphs are captured.",
        "The log ends with \"Failed: Cuda error ... custom_all_reduce.cuh:... 'invalid argument'\" (line 164 in vLLM "
        '0.33, 455 in 0.20) and "Worker proc VllmWorker-1 died unexpectedly".',
    ),
    upstream=(
        "vllm-project/vllm#42609",
        "vllm-project/vllm#43923",
        "vllm-project/vllm#49101",
        "vllm-project/vllm#56180",
    ),
    needed=needed,
    releases={">=0.18": "pending: buffers of CUDA graphs come from expandable segments, which ranks cannot share"},
    probes=(probe(shared.PROBES, "custom_ar_expandable"),),
    parts=(
        Part(
            "capture",
            shapes={
                "0.18": [
                    capture.replace_expression("ca_comm.capture()", "capture_shareably(ca_comm)"),
                    helper.import_into(groups, "capture_shareably"),
                ],
            },
        ),
    ),
)
