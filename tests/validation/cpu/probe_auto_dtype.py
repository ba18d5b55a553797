"""The KV cache tensors that vLLM's V1 model runner makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.validation.cpu.probing import engine_config, kv_cache_of, one_rank, outcome, runner_of

BUDGET = 1 << 30

PRESETS = ("4bit_nc", "k8v4", "k3v4_nc", "3bit_nc")
HYBRID = tuple((model, f"turboquant_{preset}") for model in ("35B", "27B") for preset in PRESETS)
# The first and last layers of these are not quantized.
DENSE = tuple(("dense", f"turboquant_{preset}") for preset in PRESETS)
OTHERS = tuple((model, dtype) for model in ("35B", "dense") for dtype in ("auto", "fp8"))


def tensors(found: dict[str, Any], model: str, dtype: str) -> None:
    """Make the tensors of a model's layers by the runner's own methods, on a runner without a device."""
    from vllm.config import set_current_vllm_config
    from vllm.v1.worker.utils import prepare_kernel_block_sizes

    config = engine_config(model, kv_cache_dtype=dtype, enforce_eager=True, language_model_only=True)
    specs, kv_cache = kv_cache_of(config, BUDGET)
    found["specs"] = sorted({type(spec).__name__ for spec in specs.values()})
    # There is nothing to capture.
    runner = runner_of(config, kv_cache, _check_and_update_cudagraph_mode=lambda *_, **__: None)
    with set_current_vllm_config(config):
        runner.initialize_attn_backend(kv_cache)
        raw = runner._allocate_kv_cache_tensors(kv_cache)
        made = runner._reshape_kv_cache_tensors(raw, prepare_kernel_block_sizes(kv_cache, runner.attn_groups))
    found["tensors"] = {
        name: [str(made[name].dtype), list(made[name].shape), list(made[name].stride()), made[name].storage_offset()]
        for name, spec in specs.items()
        if type(spec).__name__ != "MambaSpec"
    }


def main(home: str, folder: str) -> dict[str, Any]:
    one_rank(home)
    return {
        f"{model} {dtype}": outcome(tensors, str(Path(folder, model)), dtype)
        for model, dtype in (*HYBRID, *DENSE, *OTHERS)
    }
