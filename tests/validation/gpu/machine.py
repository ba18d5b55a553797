"""Description of a GPU machine, and why the scenarios cannot run on an unfit one."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_ASK = """
import json, torch, triton
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton.__version__,
                  "available": torch.cuda.is_available(),
                  "memory_mib": torch.cuda.mem_get_info()[1] >> 20 if torch.cuda.is_available() else 0}))
"""


def hindrance() -> str | None:
    """Return why the scenarios cannot run here; None if they can."""
    for module, name in (("vllm", "vLLM"), ("torch", "torch"), ("triton", "Triton")):
        if find_spec(module) is None:
            return f"no {name} in {sys.executable}"
    if shutil.which("nvidia-smi") is None:
        return "no nvidia-smi, hence no CUDA device"
    return None if _torch()["available"] else "torch sees no CUDA device"


def describe() -> dict[str, Any]:
    """Return what results depend on: the GPU, its memory in MiB, the driver, the CPU, the versions."""
    asked = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    gpu, _, driver = (
        subprocess.run(asked, capture_output=True, text=True, check=True).stdout.partition("\n")[0].partition(", ")
    )
    torch = _torch()
    del torch["available"]
    return {
        "gpu": gpu,
        "driver": driver,
        "cpu": f"{os.cpu_count()} x {_processor()}",
        "python": platform.python_version(),
        **torch,
    }


def _torch() -> dict[str, Any]:
    ran = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
