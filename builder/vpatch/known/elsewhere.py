"""Lines of logs that do not name the defect of one overlay: what they mean, what to do, where to read on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from vpatch.known.lines import KnownLine

_XID = "https://docs.nvidia.com/deploy/xid-errors/"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_DEBUG = "https://docs.vllm.ai/en/latest/usage/troubleshooting.html"
_MEMORY = "https://docs.vllm.ai/en/latest/configuration/conserving_memory.html"
_DRIVER = "https://docs.nvidia.com/deploy/cuda-compatibility/"
_SPECULATION = "speculation.md"


@dataclass(frozen=True)
class Elsewhere:
    """Lines with a common cause.

    Attributes:
        lines: as a log has them; `...` stands for text that varies.
        advice: what they mean and what to do, in one or two sentences.
        link: where to read on: an address, or a page of the documentation.
        seen: the same in a user's words.
        named: whether the lines name the code that fails: an overlay that states one mends it. Else an overlay that
            states just one of the lines does not get it: it has other causes, too.
        shared: whether overlays mend some of the causes: one that states a line is named for each of them, under the
            condition that its symptom has.
    """

    lines: tuple[str, ...]
    advice: str
    link: str
    seen: tuple[str, ...] = ()
    named: bool = False
    shared: bool = False

    @cached_property
    def known(self) -> tuple[KnownLine, ...]:
        """The lines, to be compared."""
        return tuple(map(KnownLine, self.lines))


ELSEWHERE = (
    Elsewhere(
        ("Out of memory: Killed process", "Memory cgroup out of memory", "OOMKilled"),
        "The system killed a process for want of RAM, not of the GPU's memory: give the machine or the container more,"
        " or let fewer processes load weights at once.",
        _MEMORY,
    ),
    Elsewhere(
        (
            "CUDA out of memory",
            "out of memory",
            "torch.OutOfMemoryError",
            "CUDA error: out of memory",
            "cudaErrorMemoryAllocation",
        ),
        "The GPU has less free memory than vLLM asked for: `vpatch plan` shows what fits. Close other programs on the"
        " card, or lower `--gpu-memory-utilization`, `--max-num-seqs` or `--max-num-batched-tokens`.",
        _MEMORY,
        shared=True,
    ),
    Elsewhere(
        ("No available memory for the cache blocks",),
        "Weights and activations leave nothing for the KV cache: raise `--gpu-memory-utilization`, or take a smaller"
        " model. `vpatch plan` shows how much is missing.",
        "plan.md",
    ),
    Elsewhere(
        ("KV cache is needed, which is larger than the available KV cache memory",),
        "One request of `--max-model-len` does not fit: lower it, or quantize the KV cache. `vpatch plan` shows both.",
        "plan.md",
    ),
    Elsewhere(
        ("max_num_seqs (...) exceeds available Mamba cache blocks",),
        "A hybrid model keeps a block of states for each of `--max-num-seqs` requests that decode, and the KV cache has"
        " fewer blocks: start with a `--max-num-seqs` of at most the number of blocks in the line. `vpatch plan` shows"
        " how many requests fit.",
        "plan.md",
    ),
    Elsewhere(
        ("is less than desired GPU memory utilization",),
        "Another program holds memory of this GPU: end it, or lower `--gpu-memory-utilization`.",
        _MEMORY,
    ),
    Elsewhere(
        ("page size of the layer is not divisible", "page size is not divisible by the"),
        "The layers of this model have KV caches of sizes that vLLM cannot put together. Another `--kv-cache-dtype`"
        " or `--block-size` changes them; `vpatch plan` computes them.",
        "plan.md",
    ),
    Elsewhere(
        (
            "EngineDeadError",
            "EngineCore encountered an issue",
            "died unexpectedly",
            "Worker proc VllmWorker-1 died unexpectedly",
            "Engine core initialization failed",
        ),
        "This line is only the end: the engine's process died before. The first traceback above it in the log has the"
        " cause; give that line to `vpatch find`, or the log to `vpatch doctor --log`.",
        "doctor.md",
    ),
    Elsewhere(
        ("illegal memory access", "cudaErrorIllegalAddress"),
        "A kernel read or wrote outside of its memory. Run once with `CUDA_LAUNCH_BLOCKING=1` to see which. On a"
        " hybrid model with speculation, `vpatch doctor --run` shows the known defects.",
        _SPECULATION,
        shared=True,
    ),
    Elsewhere(
        ("unspecified launch failure", "cudaErrorLaunchFailure"),
        "A kernel crashed on the GPU. Run once with `CUDA_LAUNCH_BLOCKING=1` to see which, and read the kernel log"
        " (`dmesg`) for an Xid.",
        _DEBUG,
    ),
    Elsewhere(
        ("device-side assert", "cudaErrorAssert"),
        "A kernel found an index out of range. The line `Assertion ... failed` above it says which; run once with"
        " `CUDA_LAUNCH_BLOCKING=1` for the right traceback.",
        _DEBUG,
        shared=True,
    ),
    Elsewhere(
        ("num_output_placeholders",),
        "Up to vLLM 0.24.0, a request that a step left out comes back with placeholders for drafts, and the embedding"
        " dies of them. Leave room for every request, or upgrade to 0.25.0.",
        _SPECULATION,
        shared=True,
    ),
    Elsewhere(
        ("NVRM: Xid", "Xid"),
        "The driver reports an error of the GPU. 13 and 31 are mostly a kernel that left its memory; 48, 63, 64, 79,"
        " 94 and 95 are mostly hardware.",
        _XID,
        ("The kernel's log has NVRM: Xid 13 or Xid 31.",),
    ),
    Elsewhere(
        (
            "operation not permitted when stream is capturing",
            "cudaErrorStreamCaptureUnsupported",
            "Cannot copy between CPU and CUDA tensors during CUDA graph capture",
        ),
        "Something waited, copied or allocated while vLLM captured a CUDA graph. `--enforce-eager` starts without"
        " graphs.",
        _DEBUG,
        shared=True,
    ),
    Elsewhere(
        ("NCCL error", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError", "unhandled cuda error, NCCL"),
        "GPUs cannot talk to each other. `NCCL_DEBUG=INFO` prints why; often it is /dev/shm in a container"
        " (`--ipc=host`), the network interface (`NCCL_SOCKET_IFNAME`), or peer-to-peer (`NCCL_P2P_DISABLE=1`).",
        _NCCL,
    ),
    Elsewhere(
        ("Watchdog caught collective operation timeout",),
        "One rank waited for another that died or hangs: the first error of the other ranks has the cause.",
        _NCCL,
    ),
    Elsewhere(
        (
            "CUDA driver version is insufficient for CUDA runtime version",
            "The NVIDIA driver on your system is too old",
            "cudaErrorInsufficientDriver",
            "system has unsupported display driver / cuda driver combination",
        ),
        "The driver is older than this torch needs: update it, or install a vLLM for an older CUDA.",
        _DRIVER,
    ),
    Elsewhere(
        (
            "no kernel image is available for execution on the device",
            "cudaErrorNoKernelImageForDevice",
            "device kernel image is invalid",
        ),
        "vLLM or torch is not built for this GPU: `vpatch doctor` shows for which it is.",
        "doctor.md",
    ),
    Elsewhere(
        ("Found no NVIDIA driver on your system", "No CUDA GPUs are available", "Failed to infer device type"),
        "No GPU is visible: look at `nvidia-smi`, at `CUDA_VISIBLE_DEVICES`, and in a container at `--gpus all`.",
        _DEBUG,
    ),
    Elsewhere(
        ("No space left on device",),
        "A disk is full, or /dev/shm in a container is too small (`--shm-size`, `--ipc=host`).",
        _DEBUG,
    ),
    Elsewhere(
        (
            # Without the colon, the class of the error counts: 'lm_head.weight' is another one.
            "KeyError 'weight'",
            "KeyError 'input_global_scale'",
            "'NoneType' object has no attribute 'size'",
            "object has no attribute 'workspace'",
        ),
        "This has many causes. If it is the last line of a start whose log has `Directly load AOT compilation`, that"
        " model was compiled for other layers: remove `~/.cache/vllm/torch_compile_cache`, or start with"
        " `VLLM_DISABLE_COMPILE_CACHE=1`. The overlay `compile-cache-key` has vLLM compile again instead.",
        "doctor.md",
        shared=True,
    ),
    Elsewhere(
        ("Failed to advance FSM",),
        "vLLM 0.27 to 0.29 print this with structured output and speculation; by itself it is noise in the log.",
        _SPECULATION,
        named=True,
    ),
    Elsewhere(
        ("DeepGemmFp8BlockScaledMMKernel",),
        "vLLM chose DeepGEMM for a block-FP8 layer. `VLLM_USE_DEEP_GEMM=0` does without it.",
        _SPECULATION,
        shared=True,
    ),
    Elsewhere(
        ("_copy_mamba_state_block",),
        "A copy of a hybrid model's state failed. `vpatch doctor --run` shows the known defects of these copies.",
        _SPECULATION,
        named=True,
    ),
    Elsewhere(
        (),
        "On a hybrid model with speculation or prefix caching, this has several known causes, and often more than one"
        " at once: `vpatch doctor --run` shows which of them your vLLM has, and `vpatch plan` which overlays a"
        " deployment needs.",
        _SPECULATION,
        (
            "Answers are garbage, as in !!!! to the end.",
            "The acceptance rate falls: drafts find no acceptance any longer.",
            "With MTP, speculative decoding or prefix caching on a hybrid model (Qwen3.5, Qwen3.6), answers or tokens"
            " are wrong, garbled, repeat or loop.",
        ),
    ),
    Elsewhere(
        (),
        "The parser does not know the model's format of calls: look whether `--tool-call-parser` is the one of the"
        " model's card, and at the chat template.",
        "https://docs.vllm.ai/en/latest/features/tool_calling.html",
        ("Tool calls leak into the text, as a literal <tool_call>.",),
    ),
)
