"""FP8 models on Ampere (RTX 3090, A100) and Turing: the kernel that vLLM chooses is one that these GPUs have.

For linear layers in FP8 with a scale for a tensor or a channel, vLLM takes the first kernel of a list that supports the
GPU. Up to 0.28, Marlin is the first, which all GPUs from Turing on have. In 0.29 and 0.30 it is behind CUTLASS, whose
`is_supported` asks for CUDA alone. CUTLASS has FP8 from compute capability 8.9 on: on older GPUs such a model dies at
the first step, in the memory profile.

CUTLASS now says that it is not supported where its FP8 kernels are missing, as in 0.31. vLLM then takes Marlin, as
before 0.29. On compute capability 8.9 and newer nothing changes.

Without the patch, `--linear-backend marlin` does the same for these two releases. Checkpoints of compressed-tensors and
FP8 with block scales choose by other lists.
"""

from vpatch import File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared

cutlass = File("vllm/model_executor/kernels/linear/scaled_mm/cutlass.py")
is_supported = cutlass.function("CutlassFP8ScaledMMLinearKernel.is_supported")
kernels = File("vllm/model_executor/kernels/linear/__init__.py")
method_init = File("vllm/model_executor/layers/quantization/fp8.py").function("Fp8LinearMethod.__init__")

asks_for_kernels = """
 if not current_platform.is_cuda():
     return False, "requires CUDA."
+if not cutlass_fp8_supported():
+    return False, "requires FP8 kernels of CUTLASS, from compute capability 8.9 on."
"""

marlin_is_first = kernels.contains("[MarlinFP8ScaledMMLinearKernel, ..., CutlassFP8ScaledMMLinearKernel, ...]")
cutlass_is_first = kernels.contains("[..., CutlassFP8ScaledMMLinearKernel, ..., MarlinFP8ScaledMMLinearKernel, ...]")
# Up to 0.18, Marlin is in no list: the method takes it itself.
marlin_by_method = method_init.contains("not current_platform.has_device_capability(89)")

OLDEST, FIRST = (7, 5), (8, 9)  # compute capabilities: the least that Marlin takes, and the first with FP8 in CUTLASS
METHODS = ("fp8", "modelopt", "modelopt_fp4")


def needed(use: Use) -> Need:
    """Return whether the use has linear layers in FP8 on a GPU without FP8 of its own."""
    if use.quantization not in METHODS or (use.quantization == "fp8" and use.block_fp8):
        return Need(needed=False, because="no linear layer is in FP8 with a scale for a tensor or a channel")
    if use.capability is None:
        return Need(needed=True, because="there may be linear layers in FP8, and the GPU may be older than Ada")
    there = "the GPU is of compute capability {}.{}".format(*use.capability)
    if not OLDEST <= use.capability < FIRST:
        return Need(needed=False, because=f"{there}, not 7.5 to 8.7")
    return Need(needed=True, because=f"there may be linear layers in FP8, and {there}")


overlay = Overlay(
    summary="FP8 on Ampere and Turing: CUTLASS is not chosen where it has no FP8 kernels.",
    symptoms=(
        'On an RTX 3090 or A100, an FP8 model dies at start with "RuntimeError: cutlass_scaled_mm_sm80_epilogue, ...'
        '/scaled_mm_c2x.cu:89", after it has selected CutlassFP8ScaledMMLinearKernel.',
    ),
    upstream=("vllm-project/vllm#55884", "vllm-project/vllm#55008", "vllm-project/vllm#53376"),
    needed=needed,
    releases={
        ">=0.18,<0.19": "not_applicable: the method takes Marlin itself on GPUs before Ada",
        ">=0.19,<0.29": "not_applicable: Marlin comes before CUTLASS",
        ">=0.29,<0.31": "pending: CUTLASS comes before Marlin, and asks for CUDA alone",
        ">=0.31": "merged: #55884",
    },
    probes=(probe(shared.PROBES, "ampere_fp8"),),
    parts=(
        Part(
            "cutlass",
            upstream=("vllm-project/vllm#55884",),
            merged=is_supported.contains("if not cutlass_fp8_supported(): ..."),
            absent=marlin_is_first.means("this vLLM takes Marlin first")
            | marlin_by_method.means("this vLLM takes Marlin on GPUs before Ada"),
            shapes={
                "0.29": Shape(
                    when=cutlass_is_first,
                    edits=[
                        is_supported.patch(asks_for_kernels),
                        cutlass.ensure_import(
                            "from vllm.model_executor.layers.quantization.utils.w8a8_utils import cutlass_fp8_supported"
                        ),
                    ],
                )
            },
        ),
    ),
)
