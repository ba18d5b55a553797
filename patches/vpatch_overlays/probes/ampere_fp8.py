"""FP8 on GPUs without FP8 of their own: the kernel that this release chooses for a linear layer has it there."""

import inspect
from typing import Any

from vpatch_overlays.probes.bare import expect, settle

CUTLASS, MARLIN = "CutlassFP8ScaledMMLinearKernel", "MarlinFP8ScaledMMLinearKernel"
FIRST = (8, 9)
"""The compute capability from which on CUTLASS has FP8 kernels."""


def main() -> None:
    """Ask for compute capabilities that this machine need not have; no GPU is used."""
    settle()
    pretend_cuda()
    for capability in ((8, 0), (8, 6), FIRST, (9, 0)):
        wanted = CUTLASS if capability >= FIRST else MARLIN
        expect("the kernel for FP8 on compute capability {}.{}".format(*capability), wanted, chosen(capability))


def pretend_cuda() -> None:
    """Make this process's platform CUDA, with a compute capability that `chosen` sets."""
    from vllm import _custom_ops
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability, PlatformEnum

    class Pretended(type(current_platform)):  # type: ignore[misc]
        _enum = PlatformEnum.CUDA
        capability = FIRST

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(*cls.capability)

        @classmethod
        def has_device_capability(cls, capability: tuple[int, int] | int, device_id: int = 0) -> bool:
            return cls.capability >= (capability if isinstance(capability, tuple) else divmod(capability, 10))

    current_platform.__class__ = Pretended
    # The extension asks no GPU, either.
    vars(_custom_ops)["cutlass_scaled_mm_supports_fp8"] = lambda capability: capability >= 89


def chosen(capability: tuple[int, int], keys: tuple[str, str] = ("StaticTensor", "DynamicTensor")) -> str:
    """Return the kernel for a linear layer, with these kinds of scales for weights and for activations."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.layers.quantization.utils import quant_utils
    from vllm.platforms import current_platform

    type(current_platform).capability = capability
    weight, activation = (getattr(quant_utils, f"kFp8{key}Sym") for key in keys)
    asked = linear.FP8ScaledMMLinearLayerConfig(
        weight_quant_key=weight,
        activation_quant_key=activation,
        input_dtype=torch.bfloat16,
        out_dtype=torch.bfloat16,
        weight_shape=(4096, 4096),
    )
    choose: Any = linear.choose_scaled_mm_linear_kernel
    named = {"quantization": "fp8_w8a8"} if "quantization" in inspect.signature(choose).parameters else {}
    with set_current_vllm_config(VllmConfig()):
        return str(choose(asked, linear._POSSIBLE_FP8_KERNELS, **named).__name__)


if __name__ == "__main__":
    main()
