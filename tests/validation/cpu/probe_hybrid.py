"""What vLLM does with TurboQuant on hybrid and dense models: sizes, whole configs, and the layers that it skips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

from tests.validation.cpu import models
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


LINEAR, FULL = "linear_attention", "full_attention"


@dataclass(frozen=True)
class Case:
    """A model's text config, its wrapper's config if that differs, and the other arguments."""

    text: dict[str, Any]
    wrapper: dict[str, Any] | None = None
    arguments: tuple[int, ...] = ()
    named: int | None = None
    is_hybrid: bool = True

    @property
    def model(self) -> SimpleNamespace:
        text = SimpleNamespace(**self.text)
        wrapper = text if self.wrapper is None else SimpleNamespace(**self.wrapper)
        return SimpleNamespace(is_hybrid=self.is_hybrid, hf_text_config=text, hf_config=wrapper)


def dense(layers: int, *arguments: int, named: int | None = None) -> Case:
    """A model of attention layers only."""
    return Case({"num_hidden_layers": layers}, arguments=arguments, named=named, is_hybrid=False)


BOUNDARY = {
    **{f"dense {layers}": dense(layers) for layers in (36, 8, 5, 4, 3, 2, 1, 0)},
    **{f"dense 10, n={n}": dense(10, n) for n in (-1, 0, 1, 3, 5, 6, 100)},
    "dense 10, named n": dense(10, named=1),
    "dense, layer_types": Case({"num_hidden_layers": 12, "layer_types": [FULL] * 12}, is_hybrid=False),
    "layer_types": Case({"layer_types": [LINEAR, LINEAR, LINEAR, FULL] * 3}),
    "layer_types, Jamba's word": Case({"layer_types": ["mamba", "attention", "mamba"]}),
    "layers_block_type": Case({"layers_block_type": ["mamba", "attention", "mamba", "hybrid"]}),
    "attn_type_list": Case({"attn_type_list": [0, 0, 1, 0, 1]}),
    "hybrid, n": Case({"layer_types": [LINEAR, FULL]}, arguments=(1,)),
    "hybrid, n=0": Case({"layer_types": [LINEAR, FULL]}, arguments=(0,)),
    "hybrid, named n": Case({"layer_types": [LINEAR, FULL]}, named=0),
    # In a multimodal wrapper, only attn_type_list is about the text model's layers.
    "text config first": Case({"layer_types": [LINEAR, FULL]}, wrapper={"layer_types": [FULL, FULL]}),
    "wrapper only": Case({}, wrapper={"layer_types": [FULL]}),
    "wrapper's attn_type_list": Case({}, wrapper={"attn_type_list": [1, 0]}),
    "text config's attn_type_list": Case({"attn_type_list": [1, 0]}, wrapper={}),
    "layer_types before layers_block_type": Case({"layer_types": [LINEAR, FULL], "layers_block_type": ["attention"]}),
    "first that is there": Case({"layer_types": [LINEAR], "layers_block_type": ["attention"]}),
    "layer_types is None": Case({"layer_types": None, "layers_block_type": ["mamba", "hybrid"]}),
    "layer_types is empty": Case({"layer_types": [], "attn_type_list": [1]}),
    "no list": Case({"num_hidden_layers": 8}),
    "no attention": Case({"attn_type_list": [0, 0]}),
    "sliding only": Case({"layer_types": [LINEAR, "sliding_attention"]}),
}


def skipped(found: dict[str, Any], case: Case) -> None:
    """Return which layers are attention, and which of them TurboQuant skips."""
    from vllm.model_executor.layers.quantization.turboquant import config

    named = {} if case.named is None else {"n": case.named}
    found["skipped"] = config.TurboQuantConfig.get_boundary_skip_layers(case.model, *case.arguments, **named)
    found["attention"] = config._get_full_attention_layer_indices(case.model)


RANDOM = {"instance_id"}  # random in each process


def plain(value: Any) -> Any:
    """Convert a value to JSON types, with the type of every object and every member except `RANDOM`.

    Raises:
        TypeError: the members of an object in it cannot be listed.
    """
    match value:
        case Enum():  # before str and int, from which many of vLLM's enums inherit, too
            return f"{type(value).__name__}.{value.name}"
        case None | bool() | int() | float() | str():
            return value
        case Path():
            return str(value)
        case type() | FunctionType():
            return f"{value.__module__}.{value.__qualname__}"
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case set() | frozenset():
            return sorted((plain(item) for item in value), key=repr)
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if name in ("torch.dtype", "torch.device"):
        return str(value)
    if is_dataclass(value):
        members = {field.name: getattr(value, field.name) for field in fields(value)} | vars(value)
    elif hasattr(value, "__dict__"):
        members = vars(value)
    else:
        raise TypeError(f"cannot list the members of {value!r}, a {name}")
    return {"": name} | {key: plain(item) for key, item in members.items() if key not in RANDOM}


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
        "boundary": {name: outcome(skipped, case) for name, case in BOUNDARY.items()},
    }
