"""Lines that users meet, as they paste them, with what is known of each; and lines of which nothing is known."""

LOCKED = (
    "Workspace is locked but allocation from '/opt/venv/lib/python3.12/site-packages/vllm/v1/attention/backends/"
    "turboquant_attn.py:702:_continuation_prefill' requires 18.25 MB, current size is 4.13 MB. "
    "Workspace growth is not allowed after locking."
)
HYBRID = (
    "NotImplementedError: TurboQuant KV cache is not supported for hybrid (attention + Mamba) models. "
    "Boundary layer protection requires uniform attention layers."
)
EPILOGUE = "RuntimeError: cutlass_scaled_mm_sm80_epilogue, /w/csrc/quantization/w8a8/cutlass/scaled_mm_c2x.cu:97"

KNOWN: tuple[tuple[str, str], ...] = (
    (f"AssertionError: {LOCKED}", "turboquant-workspace"),
    (
        f"\x1b[0;36m(EngineCore_DP0 pid=812)\x1b[0;0m ERROR 09-12 14:02:11 [core.py:790] {LOCKED}",
        "turboquant-workspace",
    ),
    (
        LOCKED.replace(" requires", "\n requires").replace("Workspace growth", "\nWorkspace growth"),
        "turboquant-workspace",
    ),
    ("Workspace growth is not allowed after locking.", "turboquant-workspace"),
    (LOCKED[: LOCKED.index(" MB")], "turboquant-workspace"),
    (f"(EngineCore pid=7) AssertionError: {LOCKED[: LOCKED.index('ze is')]}", "turboquant-workspace"),
    (LOCKED[: LOCKED.index(" requires")], "turboquant-workspace"),
    (HYBRID, "turboquant-hybrid"),
    (f"pydantic_core._pydantic_core.ValidationError: 1 validation error\n  Value error, {HYBRID}", "turboquant-hybrid"),
    (HYBRID[:70], "turboquant-hybrid"),
    ("(APIServer pid=7) " + HYBRID[:88], "turboquant-hybrid"),
    ("Boundary layer protection requires uniform attention layers.", "turboquant-hybrid"),
    ("turboquant kv cache is not supported for hybrid", "turboquant-hybrid"),
    ("ValueError: invalid literal for int() with base 10: 'sliding_window'", "turboquant-skip-list"),
    ("invalid literal for int() with base 10: sliding_window", "turboquant-skip-list"),
    ("ValueError: Unknown TurboQuant cache dtype: 'auto'. Valid presets: ['turboquant_k8v4']", "turboquant-auto-dtype"),
    ('Unknown TurboQuant cache dtype: "auto". Valid presets: turboquant_4bit_nc', "turboquant-auto-dtype"),
    (
        "ValueError: There is no module or parameter named 'lm_head.weight_scale' in Qwen3_5ForConditionalGeneration. "
        "The available parameters belonging to lm_head are: {'lm_head.weight'}",
        "ct-fp8-lm-head",
    ),
    ("There is no module or parameter named lm_head.input_scale in Qwen3ForCausalLM", "ct-fp8-lm-head"),
    (
        "ERROR [multiproc_executor.py:853] RuntimeError: Promotion for Float8 Types is not supported, attempted to "
        "promote Float8_e4m3fn and BFloat16",
        "ct-fp8-lm-head",
    ),
    ("model ties its head, answers garbage", "ct-fp8-lm-head"),
    ("RuntimeError: Assertion error (/w/csrc/apis/layout.hpp:56): Unknown SF transformation", "sm12x-deepgemm"),
    ("(Worker_TP1 pid=99) RuntimeError: Assertion error (csrc/utils/layout.hpp:71): Unknown recipe", "sm12x-deepgemm"),
    ("a long prompt takes gigabytes more than gpu-memory-utilization", "turboquant-tiles"),
    ("answers repetitive or garbled when several requests run", "hybrid-mtp-counts"),
    ("hybrid model answers well at first, loops in later turns", "hybrid-mtp-prefix"),
    ("engine dies while it captures CUDA graphs with TurboQuant", "turboquant-mtp"),
    ("answers repeat themselves, metrics look healthy", "turboquant-mtp"),
    ("wrong tokens at random", "hybrid-mtp-states"),
    ("Gated DeltaNet wrong words", "hybrid-mtp-gates"),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB.",
        "CUDA out of",
    ),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "illegal memory access"),
    ("torch.AcceleratorError: CUDA error: unspecified launch failure", "unspecified launch failure"),
    (
        "Search for `cudaErrorLaunchFailure' in https://docs.nvidia.com/cuda/x.html for more",
        "unspecified launch failure",
    ),
    ("Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/", "illegal memory access"),
    ("torch.AcceleratorError: CUDA error: device-side assert triggered", "device-side assert"),
    ("RuntimeError: CUDA error: operation not permitted when stream is capturing", "operation not permitted when"),
    ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace", "EngineDeadError"),
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "No available"),
    (
        "NotImplementedError: Layer model.layers.3: page size is not divisible by the maximum page",
        "page size of the layer",
    ),
    ("ValueError: The page size of the layer is not divisible by the maximum page size", "page size of the layer"),
    ("NVRM: Xid (PCI:0000:c1:00): 31, pid=4242, name=VLLM::EngineCor, MMU Fault: ENGINE GRAPHICS", "NVRM: Xid"),
    ("NVRM: Xid (PCI:0000:01:00): 13, Graphics SM Warp Exception", "NVRM: Xid"),
    ("Xid 31", "NVRM: Xid"),
    ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, unhandled cuda error", "NCCL error"),
    ("ncclUnhandledCudaError: Call to CUDA function failed.", "NCCL error"),
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 12040).", "CUDA driver version"),
    ("Error 803: system has unsupported display driver / cuda driver combination", "CUDA driver version"),
    ("[98765.4] Out of memory: Killed process 4242 (VLLM::EngineCor) total-vm:91234kB", "Out of memory: Killed"),
    ("CUDA error: no kernel image is available for execution on the device", "no kernel image"),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_ab12'", "No space left"),
    ("Worker proc VllmWorker-1 died unexpectedly, shutting down executor.", "EngineDeadError"),
    ("acceptance falls", "Answers are garbage"),
    ("tool calls leak into the text", "Tool calls leak"),
)
"""Each with the overlay that comes first, or how the first line or symptom of another cause begins."""

LATER: tuple[tuple[str, str], ...] = (
    ("!!!!!!!!!!!!!!!!!!!!!!!!!!!", "hybrid-mtp-graphs"),
    ("Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:368 'invalid argument'", "custom-ar-expandable"),
    (EPILOGUE, "ampere-fp8"),
    (
        "IndexKernelUtils.cu:16: vectorized_gather_kernel: block: [7,0,0] Assertion `ind >=0 && "
        '"vectorized gather kernel index out of bounds"` failed.',
        "mtp-token-budget",
    ),
    ("ERROR [backend_xgrammar.py:163] Failed to advance FSM for request chatcmpl-9 for tokens 7.", "structured-mtp"),
    ("  File vllm/v1/worker/mamba_utils.py, line 9, in precopy_mamba_align_fused_kernel", "hybrid-block-units"),
)
"""The same of overlays that a checkout may lack."""

UNKNOWN = (
    "ValueError: invalid literal for int() with base 10: 'auto'",
    "ValueError: invalid literal for int() with base 10:",
    "ValueError: There is no module or parameter named 'model.layers.3.mlp.gate' in LlamaForCausalLM",
    "AssertionError: Workspace is locked but allocation from '/a/b/gdn_attn.py:88:_forward' requires 9.12 MB, "
    "current size is 1.00 MB. Workspace growth is not allowed after locking.",
    "ModuleNotFoundError: No module named 'flash_attn'",
    "AssertionError: Workspace is locked but allocation from '",
    "ValueError: invalid literal for int() with base 10: 's",
    "There is no module or parameter named 'lm_head.weight_packed' in Qwen2ForCausalLM",
    "Parameter lm_head.weight_scale not found in params_dict",
    "(Worker_TP0 pid=22) ERROR 10-18 03:20:36 [multiproc_executor.py:628] WorkerProc failed to start.",
    "AssertionError: Attempted to load weight (torch.Size([360])) into parameter (torch.Size([358]))",
    "KeyError: 'layers.17.mlp.experts.w2_weight'",
    "ValueError: Model architectures ['FooForCausalLM'] are not supported for now. Supported architectures: dict_keys",
    "OSError: meta-llama/Llama-3.1-8B is not a local folder and is not a valid model identifier",
    "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo",
    "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
    "TypeError: forward() got an unexpected keyword argument 'kv_cache'",
    "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
    "jinja2.exceptions.TemplateError: Conversation roles must alternate user/assistant/user/assistant",
    "ValueError: The decoder prompt (length 40961) is longer than the maximum model length of 40960.",
    "INFO 09-12 14:02:11 [loggers.py:127] Engine 000: Avg prompt throughput: 12.3 tokens/s, Running: 3 reqs",
    "AssertionError: Unknown TurboQuant cache dtype: 'turboquant_9bit'. Valid presets: turboquant_k8v4",
    "triton.compiler.errors.CompilationError: at 12:4: Promotion for int4 is not what was asked",
    "pydantic_core.ValidationError: 1 validation error for VllmConfig",
    "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing",
    "NotImplementedError: Cannot copy out of meta tensor; no data!",
    "INFO 09-12 14:02:11 [__init__.py:588] Selected CutlassFP8ScaledMMLinearKernel for CompressedTensorsW8A8Fp8",
    "hello big world",
    "no idea what this is",
    "Ошибка: память недоступна",
    "Der Server antwortet nicht, obwohl er läuft",
    "内存不足",
)
