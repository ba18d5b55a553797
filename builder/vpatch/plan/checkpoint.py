"""A model from its config.json: layers, attention, quantisation; its weights' sizes from the files beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vpatch.errors import Failure, Problem
from vpatch.plan import estimate, unknown, weights
from vpatch.plan.architectures import DEFAULT_INTERVAL, KNOWN, Architecture
from vpatch.plan.jsonfile import UNREADABLE, Fields, load
from vpatch.plan.model import FULL, LINEAR, Attention, Experts, GatedDeltaNet, Model
from vpatch.plan.quantization import head_of, kv_cache_of
from vpatch.plan.quantization import read as read_quantization
from vpatch.plan.unknown import HEADS, LAYERS, POSITIONS

DTYPES = ("bfloat16", "float16")


def read(path: Path, *, name: str | None = None, weights_gib: float | None = None) -> Model:
    """Give the model whose config.json `path` is, or is in.

    `name` is what to call it, by default what its folder is called. `weights_gib` is what its weights take in GiB,
    which goes before what the files beside the config say.

    Raises:
        Failure: the config cannot be read, has values that no model has, or lacks what even bounds need.
    """
    try:
        folder, file = (path, path / "config.json") if path.is_dir() else (path.parent, path)
        beside = folder / "hf_quant_config.json"
        modelopt = load(beside) if beside.exists() else None
    except OSError as error:
        raise Failure(Problem(UNREADABLE, str(path), error.strerror or str(error))) from error
    model = model_of(load(file), str(file), name=name or folder.resolve().name, modelopt=modelopt)
    return weights.given(model, weights_gib) if weights_gib is not None else weights.beside(model, folder)


def model_of(
    config: Mapping[str, Any],
    where: str,
    *,
    name: str,
    revision: str | None = None,
    modelopt: Mapping[str, Any] | None = None,
) -> Model:
    """Give the model that a config.json says, its weights estimated. `where` is what to call the config in problems.

    `modelopt` is what a hf_quant_config.json beside it says.

    Raises:
        Failure: it has values that no model has, or lacks what even bounds need.
    """
    fields = Fields(config, where)
    names = fields.texts("architectures")
    known = next((KNOWN[one] for one in names if one in KNOWN), None)
    text = text_of(fields)
    dtype = _dtype(fields, text)
    beside = Fields(modelopt, where, fields.problems) if modelopt else None
    quantization, kv_cache_dtype = read_quantization(fields, beside), kv_cache_of(fields, beside)
    if known is None:
        model = unknown.model(text, name, names[0] if names else "")
    else:
        model = _known(text, known, name, next(one for one in names if one in KNOWN))
        if LINEAR in model.layers:
            model = replace(model, linear=_linear(text, known, dtype))
    fields.raise_problems()  # an estimate of what is absurd may take for ever
    estimated = estimate.weights(fields, text, model, known, quantization)
    fields.raise_problems()
    return replace(
        model,
        weights=estimated,
        revision=revision,
        dtype=dtype,
        quantization=quantization.method if quantization else None,
        head=head_of(quantization, multimodal=model.vision),
        kv_cache_dtype=kv_cache_dtype,
    )


def text_of(fields: Fields) -> Fields:
    """Give the part of a config that says the language model: all of it, or what a multimodal one has inside."""
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        if isinstance(fields.data.get(key), dict):
            return text_of(fields.inside(key)) if key == "thinker_config" else fields.inside(key)
    return fields


def _known(text: Fields, known: Architecture, name: str, architecture: str) -> Model:
    defaults = known.defaults
    layers = text.number("num_hidden_layers", most=LAYERS)
    not_modelled = unknown.reasons(text, known)
    model = Model(
        name=name,
        architecture=architecture,
        layers=(FULL,) * layers,
        attention=attention(text, defaults),
        hidden_size=text.number("hidden_size"),
        vocab_size=text.number("vocab_size", default=defaults["vocab_size"], most=1 << 28),
        max_position_embeddings=text.number(
            "max_position_embeddings", default=defaults["max_position_embeddings"], most=POSITIONS
        ),
        intermediate_size=text.number("intermediate_size", default=defaults.get("intermediate_size", 0)),
        experts=_experts(text, known) if known.experts else None,
        tied=text.flag("tie_word_embeddings", default=known.tied),
        vision=known.vision,
        draft_layers=text.number(known.draft, default=1, least=0, most=LAYERS) if known.draft else 0,
        unknown=not_modelled,
    )
    if not known.hybrid or not_modelled:
        return model
    return replace(model, layers=_kinds(text, layers))


def attention(text: Fields, defaults: Mapping[str, int]) -> Attention:
    """Give the shape of full attention, as vLLM's `get_head_size` and `get_total_num_kv_heads` do."""
    heads = text.number("num_attention_heads", most=HEADS)
    fewer = heads if text.nulled("num_key_value_heads") else defaults.get("num_key_value_heads", heads)
    kv_heads = text.number("num_key_value_heads", default=fewer, most=HEADS)
    if heads % kv_heads:
        text.wrong("num_key_value_heads", f"is {kv_heads}, of which {heads} heads are no multiple")
    even = text.number("hidden_size") // heads
    default = even if text.nulled("head_dim") else defaults.get("head_dim", even)
    size = text.number("head_dim", default=default if default or not even else None, most=HEADS)
    if size == 0:
        text.wrong("hidden_size", f"leaves nothing for each of {heads} heads")
    return Attention(heads, kv_heads, size)


def _kinds(text: Fields, layers: int) -> tuple[str, ...]:
    if kinds := text.texts("layer_types"):
        if len(kinds) != layers:
            text.wrong("layer_types", f"names {len(kinds):,} layers, num_hidden_layers says {layers:,}")
        return kinds
    interval = text.number("full_attention_interval", default=DEFAULT_INTERVAL, most=LAYERS)
    return tuple(LINEAR if (index + 1) % interval else FULL for index in range(layers))


def _linear(text: Fields, known: Architecture, dtype: str) -> GatedDeltaNet:
    def size(key: str) -> int:
        return text.number(key, default=known.defaults[key], most=HEADS)

    keys, values = size("linear_num_key_heads"), size("linear_num_value_heads")
    if values % keys:
        text.wrong("linear_num_value_heads", f"is {values}, no multiple of {keys} key heads")
    state = text.text("mamba_ssm_dtype") if known.reads_state_dtype else ""
    if state not in ("", "auto", "float32", *DTYPES):
        text.wrong("mamba_ssm_dtype", f"is {state[:40]!r}, not one of float32, {', '.join(DTYPES)}")
    return GatedDeltaNet(
        key_heads=keys,
        value_heads=values,
        key_head_size=size("linear_key_head_dim"),
        value_head_size=size("linear_value_head_dim"),
        conv_kernel=size("linear_conv_kernel_dim"),
        state_dtype=state if state not in ("", "auto") else dtype,
    )


def _experts(text: Fields, known: Architecture) -> Experts:
    defaults = known.defaults
    count = text.number("num_experts", "num_local_experts", "n_routed_experts", default=defaults["num_experts"])
    per_token = text.number("num_experts_per_tok", default=defaults["num_experts_per_tok"])
    if per_token > count:
        text.wrong("num_experts_per_tok", f"is {per_token}, of {count} experts")
    width = "moe_intermediate_size" if "moe_intermediate_size" in defaults else "intermediate_size"
    return Experts(count, per_token, text.number(width, default=defaults[width]))


def _dtype(fields: Fields, text: Fields) -> str:
    """Give the dtype that vLLM takes for `--dtype auto`: of a checkpoint in float32, or that says none, bfloat16."""
    said = next((f.text(key) for f in (fields, text) for key in ("dtype", "torch_dtype") if f.has(key)), "")
    said = said.removeprefix("torch.")
    return said if said in DTYPES else DTYPES[0]
