"""Print what vLLM does with TurboQuant on hybrid and dense models, as one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.validation.cpu import boundary, models
from tests.validation.cpu.dump import plain
from tests.validation.cpu.platform import GIB
from tests.validation.cpu.probing import engine_config, layers_of, one_rank, outcome

FOUR_BIT = "turboquant_4bit_nc"
DTYPES = ("4bit_nc", "k8v4", "k3v4_nc", "3bit_nc")
HYBRIDS = ("35B", "27B", "Jamba")

Options = dict[str, Any]


def serve(model: str, dtype: str = FOUR_BIT, skip: Sequence[str] = (), **options: Any) -> tuple[str, Options]:
    """Return a model and its engine arguments."""
    return model, {"kv_cache_dtype": dtype} | ({"kv_cache_dtype_skip_layers": list(skip)} if skip else {}) | options


MTP = {"method": "mtp", "num_speculative_tokens": 3}
SIZED: dict[str, tuple[str, Options]] = {
    **{f"{model} {short}": serve(model, f"turboquant_{short}") for model in HYBRIDS for short in DTYPES},
    **{f"{model} MTP": serve(model, speculative_config=MTP) for model in ("35B", "27B")},
    **{f"35B skips {layer}": serve("35B", skip=[layer]) for layer in ("0", "3", "39")},
    "27B k8v4 skips 3": serve("27B", "turboquant_k8v4", skip=["3"]),
    **{
        f"35B align {tokens}": serve("35B", enable_prefix_caching=True, max_num_batched_tokens=tokens)
        for tokens in (4095, 4096)
    },
    # Skip the refusal: the block size if only the refusal were removed.
    **{f"{model} past": serve(model, "auto", then=FOUR_BIT) for model in HYBRIDS},
    **{f"{model} {dtype}": serve(model, dtype) for model in models.CONFIGS for dtype in ("auto", "fp8")},
    "dense 4bit_nc": serve("dense"),
    "dense skips 5": serve("dense", skip=["5"]),
}
ALIGNED: dict[str, tuple[str, Options]] = {
    f"{model} TP{ranks}": serve(model, tensor_parallel_size=ranks) for model in HYBRIDS for ranks in (1, 2, 4)
}
WHOLE: dict[str, tuple[str, Options]] = {
    **{f"{model} {dtype}": serve(model, dtype) for model in models.CONFIGS for dtype in ("auto", "fp8")},
    **{f"dense {short}": serve("dense", f"turboquant_{short}") for short in DTYPES},
    "dense skips": serve("dense", skip=["12", "5", "27"]),
    "dense block size": serve("dense", block_size=32),
}


def sized(found: dict[str, Any], model: str, then: str | None = None, **arguments: Any) -> None:
    """Compute config, layers, block size and KV cache groups of a model, by the code that serves it.

    `then` is a cache dtype to switch to once the config is made.
    """
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

    # Eager and text only: compiled code and the vision tower need operators that are missing here.
    config = engine_config(model, enforce_eager=True, language_model_only=True, **arguments)
    cache = config.cache_config
    cache.cache_dtype = then or cache.cache_dtype
    found["skip_layers"] = cache.kv_cache_dtype_skip_layers
    layers = layers_of(config)
    found["block_size"] = cache.block_size
    found["padded"] = cache.mamba_page_size_padded
    specs = {name: layer.get_kv_cache_spec(config) for name, layer in layers.items()}
    found["layers"] = counted((type(spec).__name__, spec.page_size_bytes) for spec in specs.values())
    config.validate_block_size()
    (kv_cache,) = get_kv_cache_configs(config, [specs], [8 * GIB])
    found["groups"] = counted(
        (type(spec).__name__, spec.page_size_bytes, spec.block_size, len(group.layer_names))
        for group in kv_cache.kv_cache_groups
        for spec in (group.kv_cache_spec,)
    )
    found["blocks"] = kv_cache.num_blocks


def aligned(found: dict[str, Any], model: str, **arguments: Any) -> None:
    """Compute the block size by the alignment alone, without layers, for more ranks than this process can simulate."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend

    config = engine_config(model, distributed_executor_backend="mp", **arguments)
    current_platform._align_hybrid_block_size(config, TurboQuantAttentionBackend)
    found["block_size"] = config.cache_config.block_size
    found["padded"] = config.cache_config.mamba_page_size_padded


def whole(found: dict[str, Any], model: str, **arguments: Any) -> None:
    """Record a whole config."""
    config = engine_config(model, **arguments)
    found["hash"] = config.compute_hash()
    found["config"] = plain(config)


def counted(items: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    """Count equal items, in a form that JSON can hold."""
    return [[count, *item] for item, count in sorted(Counter(items).items())]


def main(home: str, folder: str) -> dict[str, Any]:
    paths = {name: str(Path(folder, name)) for name in models.CONFIGS}
    one_rank(home)
    return {
        "sized": {name: outcome(sized, paths[model], **options) for name, (model, options) in SIZED.items()},
        "aligned": {name: outcome(aligned, paths[model], **options) for name, (model, options) in ALIGNED.items()},
        "whole": {name: outcome(whole, paths[model], **options) for name, (model, options) in WHOLE.items()},
        "boundary": {name: outcome(boundary.skipped, case) for name, case in boundary.CASES.items()},
    }
