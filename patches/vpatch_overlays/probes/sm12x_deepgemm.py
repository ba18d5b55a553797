"""DeepGEMM on compute capability 12.x: claimed only if its sources for these GPUs ship."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from vpatch_overlays.probes.bare import expect, settle

SOURCES = "include/deep_gemm/impls"


def main() -> None:
    """Ask the release's own CUDA platform about GPUs that this machine need not have."""
    settle()
    platform = cuda_platform()
    if not hasattr(platform, "support_deep_gemm"):  # until 0.18: what its platform does not claim is not claimed
        return
    hopper, blackwell, rtx = (claims(platform, capability) for capability in ((9, 0), (10, 0), (12, 0)))
    expect("claims of DeepGEMM on compute capability 9.0 and 10.0", (True, True), (hopper, blackwell))
    sources = deepgemm() / SOURCES
    if rtx and sources.is_dir():  # otherwise there is no DeepGEMM that could be taken
        found = sorted({name.name[:6] for name in sources.glob("sm120_*")})
        expect("sources of the DeepGEMM that is claimed on compute capability 12.x", ["sm120_"], found)


def cuda_platform() -> Any:
    """Return vLLM's CUDA platform, without the compiled extensions that its module imports if these cannot load."""
    for name in ("vllm._C", "vllm._C_stable_libtorch"):
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = ModuleType(name)
    return importlib.import_module("vllm.platforms.cuda").CudaPlatformBase


def claims(platform: Any, capability: tuple[int, int]) -> bool:
    """Return whether the platform claims DeepGEMM on a GPU of this compute capability."""
    from vllm.platforms.interface import DeviceCapability

    class Pretended(platform):  # type: ignore[misc]
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(*capability)

    return bool(Pretended.support_deep_gemm())


def deepgemm() -> Path:
    """Return the folder of the DeepGEMM that vLLM imports: a package of its own, or else the copy in vLLM."""
    import vllm

    try:
        return Path(str(importlib.import_module("deep_gemm").__file__)).parent
    except ImportError:
        return Path(str(vllm.__file__)).parent / "third_party/deep_gemm"


if __name__ == "__main__":
    main()
