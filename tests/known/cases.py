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
        "On vLLM 0.20, an engine with TurboQuant and speculative decoding dies while it captures CUDA graphs.",
        "turboquant-mtp",
    ),
    ("turboquant slow", "turboquant-decode"),
    ("is not supported for hybrid", "turboquant-hybrid"),
    ("turboquant hybrid mamba models unsupported", "turboquant-hybrid"),
    ("wrong answers with MTP", "hybrid-mtp-counts"),
    ("MTP gives wrong tokens", "hybrid-mtp-states"),
    ("The model returns !!!! for Qwen3.6 with MTP", "hybrid-mtp-graphs"),
    ("wrong answers with prefix caching", "hybrid-block-units"),
    ("tokens half speed", "turboquant-decode"),
    ("mtp crash", "mtp-capture-sizes"),
    ("bad JSON", "structured-mtp"),
    ("the same sentence over and over", "hybrid-zero-drafts"),
    ("speculation dies with images", "mtp-token-budget"),
    ("torch.AcceleratorError: CUDA error: unspecified launch failure", "unspecified launch failure"),
    (
        "Search for `cudaErrorLaunchFailure' in https://docs.nvidia.com/cuda/x.html for more",
        "unspecified launch failure",
    ),
    ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace", "EngineDeadError"),
    (
        "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (165). Each decode sequence requires one "
        "Mamba cache block, so CUDA graph capture cannot proceed.",
        "max_num_seqs (...)",
    ),
    ("max_num_seqs (1024) exceeds available Mamba cache blocks (63)", "max_num_seqs (...)"),
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
    ("what does hybrid-mtp-gates do", "hybrid-mtp-gates"),
    ("how do I revert `turboquant_decode`?", "turboquant-decode"),
    ("what does receipt do", "receipt"),
    ("quality got worse with multi token prediction, no errors in the log", "hybrid-mtp-counts"),
    ("after I turned on num_speculative_tokens the model babbles", "hybrid-mtp-counts"),
    ("after enabling num_speculative_tokens the answers are rubbish", "hybrid-mtp-counts"),
    *(
        (text, "hybrid-align-progress")
        for text in ("server hangs", "vLLM is not responding", "the server never answers")
    ),
    ("server is slow", "turboquant-decode"),
    ("vLLM 0.20.2 crashed", "ampere-fp8"),
    ("OOM on a long prompt", "turboquant-tiles"),
    ("Last State: Terminated, Reason: OOMKilled", "Out of memory: Killed"),
    ("the engine stops responding", "hybrid-align-progress"),
    ("engine dies at startup", "ampere-fp8"),
    ("only exclamation marks", "hybrid-mtp-graphs"),
    ("my qwen3.6 answers only exclamation marks", "hybrid-mtp-graphs"),
    *((text, "turboquant-tiles") for text in ("gpu memory utilization", "gpu_memory_utilization")),
    ("weight loader lm head vocab parallel embedding", "ct-fp8-lm-head"),
)
"""Each with the overlay that comes first, or how the first line or symptom of another cause begins."""

SHARED: tuple[tuple[str, str, str], ...] = (
    (
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "mtp-capture-sizes",
        "illegal memory access",
    ),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "mtp-capture-sizes", "illegal memory"),
    ("illegal memory access", "mtp-capture-sizes", "illegal memory access"),
    ("MTP illegal memory access hybrid first request", "mtp-capture-sizes", "illegal memory access"),
    ("draft model with sliding window, illegal memory access", "hybrid-block-units", "illegal memory access"),
    ("Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/", "mtp-capture-sizes", "illegal memory"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB.", "turboquant-tiles", "CUDA out of"),
    ("torch.AcceleratorError: CUDA error: device-side assert triggered", "mtp-token-budget", "device-side assert"),
    ("assert request.num_output_placeholders >= 0", "mtp-token-budget", "num_output_placeholders"),
    ("CUDA error: operation not permitted when stream is capturing", "turboquant-mtp", "operation not permitted"),
    (
        "RuntimeError: Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is "
        "pinned. Please use tensor.pin_memory()",
        "turboquant-mtp",
        "operation not permitted",
    ),
    ("KeyError: 'weight'", "compile-cache-key", "KeyError 'weight'"),
    ("(EngineCore pid=7) ERROR [core.py:9] KeyError: 'input_global_scale'", "compile-cache-key", "KeyError 'weight'"),
    (
        "ERROR [core.py:9] AttributeError: 'NoneType' object has no attribute 'size'",
        "compile-cache-key",
        "KeyError 'weight'",
    ),
    ("Selected DeepGemmFp8BlockScaledMMKernel for Fp8LinearMethod", "sm12x-deepgemm", "DeepGemmFp8"),
)
"""Lines with many causes, each with the overlay that comes first, under a condition, and the cause behind it."""

LATER: tuple[tuple[str, str], ...] = (
    ("!!!!!!!!!!!!!!!!!!!!!!!!!!!", "hybrid-mtp-graphs"),
    ("Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:368 'invalid argument'", "custom-ar-expandable"),
    *(
        (text, "custom-ar-expandable")
        for text in (
            "expandable segments",
            "--expandable-segments",
            "worker died during cuda graph capture with expandable segments",
            "vllm worker dies silently with expandable segments and tp 2",
            "a worker dies in custom all reduce",
        )
    ),
    (EPILOGUE, "ampere-fp8"),
    (
        "IndexKernelUtils.cu:16: vectorized_gather_kernel: block: [7,0,0] Assertion `ind >=0 && "
        '"vectorized gather kernel index out of bounds"` failed.',
        "mtp-token-budget",
    ),
    ("ERROR [backend_xgrammar.py:163] Failed to advance FSM for request chatcmpl-9 for tokens 7.", "structured-mtp"),
    ("the answer is cut off after <tool_call>", "qwen-parser-text"),
    ("  File vllm/v1/worker/mamba_utils.py, line 9, in precopy_mamba_align_fused_kernel", "hybrid-block-units"),
)
"""The same of overlays that a checkout may lack."""

UNKNOWN = (
    "ValueError: invalid literal for int() with base 10: 'auto'",
    "ValueError: There is no module or parameter named 'model.layers.3.mlp.gate' in LlamaForCausalLM",
    "AssertionError: Workspace is locked but allocation from '/a/b/gdn_attn.py:88:_forward' requires 9.12 MB, "
    "current size is 1.00 MB. Workspace growth is not allowed after locking.",
    "ModuleNotFoundError: No module named 'flash_attn'",
    "ValueError: invalid literal for int() with base 10: 's",
    "There is no module or parameter named 'lm_head.weight_packed' in Qwen2ForCausalLM",
    "Parameter lm_head.weight_scale not found in params_dict",
    "(Worker_TP0 pid=22) ERROR 10-18 03:20:36 [multiproc_executor.py:628] WorkerProc failed to start.",
    "AssertionError: Attempted to load weight (torch.Size([360])) into parameter (torch.Size([358]))",
    "KeyError: 'layers.17.mlp.experts.w2_weight'",
    "KeyError: 'lm_head.weight'",
    "KeyError: 'model.layers.3.mlp.down_proj.input_global_scale'",
    "AttributeError: 'NoneType' object has no attribute 'shape'",
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
    *("kv_cache_dtype", "segments expandable", "weight scale", "max num seqs too high", "lm head"),
    *("no idea what this is", "server killed by OOM"),
    *("print the receipt of the order", "my dog hangs around", "server returns 500", "server not found", "vllm server"),
    "Ошибка: память недоступна",
    "Der Server antwortet nicht, obwohl er läuft",
    "内存不足",
)
