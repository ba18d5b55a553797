"""On which GPUs vLLM claims DeepGEMM, and which kernel it takes for block FP8 there."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from tests.validation.cpu.platform import pretend_capability
from tests.validation.cpu.probing import attempt, engine_config

CAPABILITIES = ((9, 0), (10, 0), (12, 0), (12, 1))
PACKAGE = "deep_gemm"
COPY = f"vllm.third_party.{PACKAGE}"


def install(folder: Path, code: str = "", *sources: str) -> None:
    """Install a package `deep_gemm` with these sources."""
    at = folder / PACKAGE
    impls = at / "include/deep_gemm/impls"
    impls.mkdir(parents=True)
    (at / "__init__.py").write_text(code)
    for name in sources:
        (impls / name).touch()
    sys.path.insert(0, str(folder))


def forget() -> None:
    """Drop what vLLM has found out about the GPU and its packages."""
    from vllm.utils import deep_gemm, import_utils

    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    cached: list[Any] = [deep_gemm.is_deep_gemm_supported, deep_gemm.is_deep_gemm_e8m0_used, import_utils._has_module]
    if companion := sys.modules.get("vllm._vpatch.sm12x_deepgemm"):
        cached.append(companion.has_sm120_sources)
    for one in cached:
        one.cache_clear()


def kernel(config: Any) -> str:
    """Return the name of the kernel that vLLM takes for a linear layer of a model in block FP8."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape, create_fp8_quant_key

    asked = linear.FP8ScaledMMLinearLayerConfig(
        weight_quant_key=create_fp8_quant_key(static=True, group_shape=GroupShape(128, 128)),
        activation_quant_key=create_fp8_quant_key(static=False, group_shape=GroupShape(1, 128)),
        input_dtype=torch.bfloat16,
        out_dtype=torch.bfloat16,
        weight_shape=(4096, 4096),
    )
    with set_current_vllm_config(config):
        chosen = linear.choose_scaled_mm_linear_kernel(asked, linear._POSSIBLE_FP8_BLOCK_KERNELS)
    return str(chosen.__name__)


def seen(found: dict[str, Any], config: Any) -> None:
    """Record the claim and the kernel for each capability."""
    from vllm.platforms import current_platform
    from vllm.utils.deep_gemm import is_deep_gemm_supported

    for major, minor in CAPABILITIES:
        pretend_capability(major, minor)
        forget()
        claimed = bool(current_platform.support_deep_gemm())
        found[f"{major}.{minor}"] = [claimed, bool(is_deep_gemm_supported()), kernel(config)]


def main(home: str, folder: str) -> dict[str, Any]:
    os.environ["CUDA_HOME"] = home
    sys.modules[f"{COPY}._C"] = MagicMock()  # its compiled half
    config = engine_config(str(Path(folder, "dense")))
    packages = {
        "copy": None,
        "with sources": ("", "sm90_x.cuh", "sm120_x.cuh"),
        "without sources": ("", "sm90_x.cuh"),
        "broken": ("raise ImportError", "sm120_x.cuh"),
    }
    found = {}
    for name, package in packages.items():
        path = [*sys.path]
        if package:
            install(Path(home, name.replace(" ", "-")), *package)
        found[name] = attempt(seen, config)
        sys.path[:] = path
    return found
