"""What the probes share: vLLM's configuration for a small model, on machines with and without a GPU.

Without one, vLLM finds no platform, and makes no configuration. The one that it gets here has no device: good for
configurations, layers without weights, and sizes.
"""

import json
import os
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
"""A Qwen3, all of whose layers are attention."""


def settle() -> None:
    """Give vLLM a platform if it finds none. To be called before anything else of vLLM is imported."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["VLLM_CACHE_ROOT"] = tempfile.mkdtemp()  # the home may be read-only

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


def expect(what: str, wanted: object, found: object) -> None:
    """Hold two values against each other; an `assert` would be gone where PYTHONOPTIMIZE is set.

    Raises:
        AssertionError: they differ.
    """
    if wanted != found:
        raise AssertionError(f"{what}: {wanted} expected, {found} found")


def engine_config(model: dict[str, Any], **options: Any) -> Any:
    """Make the configuration of a model as `vllm serve` does.

    Args:
        model: its config.json.
        options: engine arguments beside those that hold here: TurboQuant, text only, up to 8,192 tokens.

    Raises:
        Exception: whatever vLLM has against it.
    """
    from vllm.engine.arg_utils import EngineArgs

    folder = tempfile.mkdtemp()
    Path(folder, "config.json").write_text(json.dumps(model), "utf-8")
    fixed = {"kv_cache_dtype": TURBOQUANT, "language_model_only": True, "enforce_eager": True, "max_model_len": 8192}
    arguments = {"model": folder, "skip_tokenizer_init": True} | fixed | options
    return EngineArgs(**arguments).create_engine_config()
