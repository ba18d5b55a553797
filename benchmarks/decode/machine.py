"""The machine at hand: whether the kernels can be measured on it, and what a report says of it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib import import_module, metadata
from typing import Any


class Unusable(Exception):
    """Nothing can be measured here; the message is one sentence."""


def require() -> None:
    """Check that this Python has a GPU, and a vLLM with the kernels.

    Raises:
        Unusable: it does not.
    """
    try:
        import torch
    except ImportError as error:
        raise Unusable(f"torch cannot be imported ({error}): run this with the Python of your vLLM") from None
    if not torch.cuda.is_available():
        raise Unusable("torch finds no CUDA GPU: run this on a machine with one")
    for module, advice in (
        ("vllm", "run this with the Python of your vLLM"),
        ("vllm._vpatch.turboquant_decode", "apply the overlay `turboquant-decode` to this vLLM first"),
    ):
        try:
            import_module(module)
        except ImportError as error:
            raise Unusable(f"{module} cannot be imported ({error}): {advice}") from None


def describe() -> dict[str, Any]:
    """Return the GPU, its driver, and the versions of what runs on it."""
    import torch
    import vllm

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "capability": f"{properties.major}{properties.minor}",
        "processors": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": {
            "vLLM": str(vllm.__version__),
            "torch": str(torch.__version__),
            "Triton": _version("triton"),
            "vpatch": _version("vpatch"),
        },
    }


def _driver() -> str:
    """Return the version of the driver, or "unknown"."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = ran.stdout.split()
    return lines[0] if ran.returncode == 0 and lines else "unknown"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
