"""Helpers for the probes: vLLM's configuration for a small model, on machines with and without a GPU.

Without a GPU, vLLM finds no platform and makes no configuration. The platform defined here has no device: it suffices
for configurations, layers without weights, and sizes.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

TURBOQUANT = "turboquant_4bit_nc"

DENSE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_size": 512,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}
"""A Qwen3, whose layers are all attention."""


def settle() -> None:
    """Install a platform if vLLM finds none. Call this before anything else imports vLLM."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["VLLM_CACHE_ROOT"] = tempfile.mkdtemp()  # the home folder may be read-only

    import vllm.platforms
    from vllm.platforms.interface import Platform, PlatformEnum

    class Bare(Platform):  # type: ignore[misc]
        _enum = PlatformEnum.OOT
        device_name = device_type = "cpu"
        dispatch_key = "CPU"

    if not vllm.platforms.current_platform.device_type:
        vllm.platforms._current_platform = Bare()

    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda look: look()  # another process would find no platform


def unpin() -> None:
    """Have vLLM's modules that are loaded pin no memory, which needs a device."""
    from vllm.platforms import current_platform
    from vllm.utils import platform_utils

    current_platform.is_pin_memory_available = lambda: False
    platform_utils.is_pin_memory_available.cache_clear()
    for module in [module for name, module in sys.modules.items() if name.startswith("vllm.")]:
        if "PIN_MEMORY" in vars(module):
            module.PIN_MEMORY = False  # type: ignore[attr-defined]


def expect(what: str, wanted: object, found: object) -> None:
    """Compare two values; unlike `assert`, this also works with PYTHONOPTIMIZE.

    Raises:
        AssertionError: they differ.
    """
    if wanted != found:
        raise AssertionError(f"{what}: {wanted} expected, {found} found")


def engine_config(model: dict[str, Any], **options: Any) -> Any:
    """Make the configuration of a model as `vllm serve` does.

    Args:
        model: its config.json.
        options: engine arguments that add to or replace the fixed ones: TurboQuant, text only, up to 8,192 tokens.

    Raises:
        Exception: any error of vLLM.
    """
    from vllm.engine.arg_utils import EngineArgs

    folder = tempfile.mkdtemp()
    Path(folder, "config.json").write_text(json.dumps(model), "utf-8")
    fixed = {"kv_cache_dtype": TURBOQUANT, "language_model_only": True, "enforce_eager": True, "max_model_len": 8192}
    arguments = {"model": folder, "skip_tokenizer_init": True} | fixed | options
    return EngineArgs(**arguments).create_engine_config()
