"""DeepGEMM on RTX 5090, RTX PRO 6000 and other GPUs of compute capability 12.x: only where its kernels ship.

vLLM from 0.24 on claims DeepGEMM on these GPUs, so that block-FP8 models take it there. DeepGEMM compiles its kernels
at run time from sources in vLLM's wheel, and the wheels of 0.24.0, 0.27.0 and 0.27.1 have no source for these GPUs
(`sm120_*`). Such a model then dies at start: "Unknown SF transformation" when its weights are loaded, or "Unknown
recipe" when its kernels are warmed up.

The claim now asks as well whether such a source lies beside the DeepGEMM that vLLM imports: a package `deep_gemm` that
is installed separately, or else the copy in the wheel. Without one, vLLM chooses another kernel, as on any GPU without
DeepGEMM. A newer `deep_gemm` that has the sources is used as before. Compute capabilities 9.0 and 10.x are not asked.

No Python file tells which wheel has the sources, so vpatch lists their folder in the tree. A tree without that folder,
such as a source checkout that was not built, cannot tell; there the overlay is not applicable, for on 0.25, 0.26 and
from 0.28 on nothing is to be fixed. An installed vLLM, an image and a tree that `vpatch fetch` makes can tell.

Without the patch, `VLLM_USE_DEEP_GEMM=0` in the environment of the server does the same for these three releases. The
overlay does not make DeepGEMM work anywhere: GB10 (compute capability 12.1) faults even where the sources ship
(vllm-project/vllm#54125), and DeepSeek-V4 on 0.27 has further obstacles on these GPUs (vllm-project/vllm#51758). vLLM
itself keeps some models, such as Qwen3.5, from DeepGEMM on these GPUs.
"""

from vpatch import Companion, File, Folder, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared

cuda = File("vllm/platforms/cuda.py")
claim = cuda.function("CudaPlatformBase.support_deep_gemm")
claim_before_0_19 = File("vllm/utils/deep_gemm.py").function("is_deep_gemm_supported")
sources = Folder("vllm/third_party/deep_gemm/include/deep_gemm/impls")

helper = Companion(f"{shared.COMPANIONS}.sm12x_deepgemm")

WITHOUT_12 = "cls.is_device_capability(90) or cls.is_device_capability_family(100)"
WITHOUT_12_BEFORE_0_19 = """
is_supported_arch = current_platform.is_cuda() and (
    current_platform.is_device_capability(90) or current_platform.is_device_capability_family(100)
)
"""
asks_for_sources = """
 return (
     cls.is_device_capability(90)
     or cls.is_device_capability_family(100)
-    or cls.is_device_capability_family(120)
+    or (cls.is_device_capability_family(120) and has_sm120_sources())
 )
"""

BLOCKS = "FP8 with block scales"
LACKING = (
    "DeepGEMM is claimed on compute capability 12.x, and the wheel lacks its kernels; VLLM_USE_DEEP_GEMM=0 does without"
)

# DeepGEMM is claimed on compute capabilities 9.0 and 10.x alone: up to 0.23, before 0.19 in another function.
claims_nothing = claim.contains(f"return {WITHOUT_12}") | claim_before_0_19.contains(WITHOUT_12_BEFORE_0_19)
# A source of DeepGEMM is for compute capability 12.x: in the wheels of 0.25, 0.26 and from 0.28 on.
ships = sources.has("sm120_*")
# DeepGEMM is claimed on 12.x, as from 0.24 on, in a tree without the folder of the sources, such as a checkout.
cannot_tell = ~sources.exists & claim.contains(f"return {WITHOUT_12} or cls.is_device_capability_family(120)")


def needed(use: Use) -> Need:
    """Return whether the use takes DeepGEMM on a GPU of compute capability 12.x."""
    if not use.block_fp8:
        return Need(needed=False, because=f"nothing of the checkpoint is {BLOCKS}, which DeepGEMM is for")
    if use.capability is None:
        return Need(needed=True, because=f"{BLOCKS}, and the GPU may be of compute capability 12.x")
    major, minor = use.capability
    there = f"the GPU is of compute capability {major}.{minor}"
    if major != 12:
        return Need(needed=False, because=f"{there}, not 12.x")
    return Need(needed=True, because=f"{BLOCKS}, and {there}")


overlay = Overlay(
    summary="DeepGEMM on compute capability 12.x (RTX 5090, PRO 6000) only if its kernels ship.",
    symptoms=(
        'On an RTX 5090 or RTX PRO 6000, a block-FP8 model dies at start, with "Unknown SF transformation" or '
        '"Unknown recipe" from DeepGEMM.',
    ),
    errors=("DeepGemmFp8BlockScaledMMKernel",),
    upstream=("vllm-project/vllm#47436", "vllm-project/vllm#51758", "vllm-project/vllm#43477"),
    needed=needed,
    releases={
        ">=0.18,<0.24": "not_applicable: DeepGEMM is not claimed on compute capability 12.x yet",
        ">=0.24,<0.25": f"pending: {LACKING}",
        ">=0.25,<0.27": "not_applicable: the wheel has DeepGEMM's kernels for compute capability 12.x",
        ">=0.27,<0.28": f"pending: {LACKING}",
        ">=0.28": "not_applicable: the wheel has DeepGEMM's kernels for compute capability 12.x",
    },
    probes=(probe(shared.PROBES, "sm12x_deepgemm"),),
    parts=(
        Part(
            "claim",
            absent=claims_nothing.means("this vLLM claims no DeepGEMM on 12.x")
            | ships.means("this vLLM has DeepGEMM's sm120 kernels")
            | cannot_tell.means("no DeepGEMM folder to look into"),
            shapes={
                # The folder of the sources is there, and has none for 12.x: the wheels of 0.24.0, 0.27.0 and 0.27.1.
                "0.24": Shape(
                    when=sources.exists & ~ships,
                    edits=[
                        claim.patch(asks_for_sources),
                        helper.import_into(cuda, "has_sm120_sources"),
                    ],
                )
            },
        ),
    ),
)
