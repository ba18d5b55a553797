"""Print the KV cache tensors that vLLM's V1 model runner makes, as one JSON object."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from tests.validation.cpu.platform import pretend_h100, single_rank
from tests.validation.cpu.probing import engine_config, layers_of, outcome

BUDGET = 1 << 30

PRESETS = ("4bit_nc", "k8v4", "k3v4_nc", "3bit_nc")
HYBRID = tuple((model, f"turboquant_{preset}") for model in ("35B", "27B") for preset in PRESETS)
# The first and last layers of these are not quantized.
DENSE = tuple(("dense", f"turboquant_{preset}") for preset in PRESETS)
OTHERS = tuple((model, dtype) for model in ("35B", "dense") for dtype in ("auto", "fp8"))


def tensors(found: dict[str, Any], model: str, dtype: str) -> None:
    """Make the tensors of a model's layers by the runner's own methods, on a runner without a device."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.utils import prepare_kernel_block_sizes

    config = engine_config(model, kv_cache_dtype=dtype, enforce_eager=True, language_model_only=True)
    specs = {name: layer.get_kv_cache_spec(config) for name, layer in layers_of(config).items()}
    found["specs"] = sorted({type(spec).__name__ for spec in specs.values()})
    (kv_cache,) = get_kv_cache_configs(config, [specs], [BUDGET])

    runner = object.__new__(GPUModelRunner)
    vars(runner).update(
        vllm_config=config,
        cache_config=config.cache_config,
        compilation_config=config.compilation_config,
        kv_cache_config=kv_cache,
        device=torch.device("meta"),
        attn_groups=[],
        runner_only_attn_layers=set(),
        kv_sharing_fast_prefill_eligible_layers=set(),
        _check_and_update_cudagraph_mode=lambda *_, **__: None,  # nothing to capture
    )
    with set_current_vllm_config(config):
        runner.initialize_attn_backend(kv_cache)
        raw = runner._allocate_kv_cache_tensors(kv_cache)
        made = runner._reshape_kv_cache_tensors(raw, prepare_kernel_block_sizes(kv_cache, runner.attn_groups))
    found["tensors"] = {
        name: [str(made[name].dtype), list(made[name].shape), list(made[name].stride()), made[name].storage_offset()]
        for name, spec in specs.items()
        if type(spec).__name__ != "MambaSpec"
    }


def main(home: str, folder: str) -> None:
    """Run every case; `folder` holds the models."""
    with contextlib.redirect_stdout(sys.stderr):
        pretend_h100()
        import torch
        from vllm.config import VllmConfig, set_current_vllm_config

        with set_current_vllm_config(VllmConfig()):
            single_rank(home)
        torch.set_default_dtype(torch.bfloat16)
        found = {
            f"{model} {dtype}": outcome(tensors, str(Path(folder, model)), dtype)
            for model, dtype in (*HYBRID, *DENSE, *OTHERS)
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
