"""Read a model from its config.json: layers, attention, quantization, and its weights from the files beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from vpatch.plan import CHUNKED, DELTA, FULL, LINEAR, MOE, SLIDING, Attention, Experts, Latent, Model, Rope, weights
from vpatch.plan.architectures import (
    DECODERS,
    HYBRID,
    KEYS,
    KNOWN,
    LISTED,
    Architecture,
    count_of,
    kinds_of,
    listed,
    not_modeled,
    state_of,
)
from vpatch.plan.checkpoint_files import Fields, load_json, unreadable
from vpatch.plan.matrices import tower_of
from vpatch.plan.quantization import head_scheme, kv_cache_of, quantization_of

Config = Mapping[str, Any]
DTYPES = ("bfloat16", "float16")
_LAYERS, _HEADS, _POSITIONS = 1024, 65_536, 1 << 32  # more than any model has, refused before memory is spent
# Keys of layers that keep a state or an index of their own, beside attention or for each request.
_BESIDE = re.compile(
    "mamba|ssm|conv|linear_(key|value|num|attn|silu)|layer_group|rwkv|recurren|lru_|delta|index_(head|n_|topk)|indexer|compress"
    "|cross_attention|is_encoder_decoder",
    re.IGNORECASE,
)
_SHARING = {"topk_freq": 1, "skip_topk_offset": 2}  # by default, each layer has an indexer
_LENGTH = "model_max_length", "max_position_embeddings"  # the first wins: `derive_max_model_len_and_key`
_DEFAULT_LENGTH = 2048  # what vLLM assumes where a config has none


def read(path: Path, *, name: str | None = None, weights_gib: float | None = None) -> Model:
    """Read the model of a config.json, or of its folder; its weights are `weights_gib`, or those of its files."""
    try:
        folder, file = (path, path / "config.json") if path.is_dir() else (path.parent, path)
        beside = folder / "hf_quant_config.json"
        modelopt = load_json(beside) if beside.exists() else None
    except OSError as error:
        raise unreadable(path, error) from error
    model = model_of(load_json(file), str(file), name=name or folder.resolve().name, modelopt=modelopt)
    return weights.with_total(model, weights_gib) if weights_gib is not None else weights.from_files(model, folder)


def model_of(
    config: Config, where: str, *, name: str, revision: str | None = None, modelopt: Config | None = None
) -> Model:
    """Return the model that a config.json (called `where`), and the hf_quant_config.json beside it, describe.

    Its weights are estimated. Raises `Failure` for impossible values, and for a config that lacks what bounds need.
    """
    fields = Fields(config, where)
    names = fields.texts("architectures")
    architecture = next((one for one in names if one in KNOWN), "")
    text = _text_config(fields)
    known = KNOWN.get(architecture) and DECODERS.get(text.text("model_type"), KNOWN[architecture])
    # As vLLM resolves `--dtype auto`: a checkpoint in float32, or without a dtype, becomes bfloat16.
    dtypes = (place.text(key) for place in (fields, text) for key in ("dtype", "torch_dtype") if place.has(key))
    dtype = next(dtypes, "").removeprefix("torch.")
    dtype = dtype if dtype in DTYPES else DTYPES[0]
    beside = Fields(modelopt, where, fields.problems) if modelopt else None
    quantization, kv_cache_dtype = quantization_of(fields, beside), kv_cache_of(fields, beside)
    if known:
        model = _known(text, known, name, architecture)
        # Of a multimodal model, the outer config decides, as in `VllmConfig.with_hf_config`.
        model = replace(model, tied=fields.flag("tie_word_embeddings", default=model.tied))
        if known.vision:
            model = replace(model, tower=tower_of(fields, known.vision, model.hidden_size))
        if model.hybrid:
            model = replace(model, state=state_of(text, known, dtype))
    else:
        model = _bounds(text, name, names[0] if names else "")
    fields.raise_problems()  # an estimate from absurd values may take forever
    estimated = weights.estimate(text, model, known, quantization)
    fields.raise_problems()
    head = head_scheme(quantization, multimodal=model.tower is not None)
    model = replace(model, weights=estimated, revision=revision, dtype=dtype, kv_cache_dtype=kv_cache_dtype)
    method = quantization.method if quantization else None
    blocks = quantization is not None and quantization.has("fp8-block")
    return replace(model, quantization=method, block_fp8=blocks, head=head.name if head else None)


def _text_config(fields: Fields) -> Fields:
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        if isinstance(fields.data.get(key), dict):
            return _text_config(fields.inside(key)) if key == "thinker_config" else fields.inside(key)
    return fields


def _known(text: Fields, known: Architecture, name: str, architecture: str) -> Model:
    defaults = known.defaults
    layers = count_of(text, _LAYERS)
    key = "attention_chunk_size" if known.chunked else "sliding_window"
    window = text.number(key, default=0 if text.nulled(key) else known.window, least=0, most=_POSITIONS)
    unknown = _not_modeled(text, known, window)
    experts = _experts(text, known) if known.experts else None
    own = "hidden_size_per_layer_input"
    vocab, positions = defaults["vocab_size"], defaults["max_position_embeddings"]
    model = Model(
        name=name,
        architecture=architecture,
        layers=(FULL,) * layers,
        attention=_latent(text, defaults) if known.latent else _attention(text, defaults),
        local=_usual(text, defaults) if "global_head_dim" in defaults else None,
        borrowing=text.number("num_kv_shared_layers", default=0, least=0, most=layers - 1) if known.parallel else 0,
        inclusive=known.inclusive,
        own_width=text.number(own, default=defaults[own], least=0) if own in defaults else 0,
        hidden_size=text.number("hidden_size"),
        vocab_size=text.number("vocab_size", default=vocab, most=1 << 28),
        max_position_embeddings=text.number(*_LENGTH, default=positions, most=_POSITIONS),
        intermediate_size=_width(text, known, experts),
        experts=experts,
        tied=text.flag("tie_embedding", default=text.flag("tie_word_embeddings", default=known.tied)),
        draft_layers=_drafts(text, known) if known.draft else 0,
        undrafted=known.undrafted,
        window=window,
        rope=_rope(text),
        unknown=unknown,
        bounded=not (unknown and known.latent),
        since=known.listed_since if text.has(LISTED) and known.listed_since else known.since,
    )
    if unknown:
        return model
    kinds = _kinds(text, known, layers, window)
    if model.borrowing and set(kinds) - set(kinds[: layers - model.borrowing]):
        text.wrong("num_kv_shared_layers", f"is {model.borrowing}, and leaves no layer of their kind with a KV cache")
    return replace(model, layers=kinds)


def _not_modeled(text: Fields, known: Architecture, window: int) -> tuple[str, ...]:
    reasons = []
    if window and known.switched and text.flag("use_sliding_window", default=False):
        reasons.append(f"a sliding window of {window:,} tokens bounds what attention keeps")
    local = CHUNKED if known.chunked else SLIDING
    kinds = {FULL, local} if window and not known.switched else {FULL}
    if known.hybrid:
        kinds = {FULL, LINEAR} if known.state == DELTA else HYBRID
    if others := sorted(set(text.texts("layer_types")) - kinds):
        reasons.append(f"layers of another kind: {', '.join(kind[:40] for kind in others[:5])}")
    if not known.chunked and text.number("attention_chunk_size", default=0, least=0, most=_POSITIONS):
        reasons.append("attention is chunked")
    reasons += not_modeled(text, known)
    if known.latent and text.nulled("kv_lora_rank"):
        reasons.append("attention is not latent: kv_lora_rank is null")
    return tuple(reasons)


def _rope(text: Fields) -> tuple[Rope, ...]:
    """Read the scaling of positions: one, or one for each kind of layer."""
    key = "rope_parameters" if text.has("rope_parameters") else "rope_scaling"
    whole = text.inside(key)
    nested = [whole.inside(name) for name, value in whole.data.items() if isinstance(value, dict)]
    kinds = [(one, one.text("rope_type") or one.text("type")) for one in nested or [whole]]

    def original(fields: Fields) -> int:
        return fields.number("original_max_position_embeddings", default=0, least=0, most=_POSITIONS)

    # vLLM looks for YaRN's original length among its parameters, and for LongRoPE's beside them.
    return tuple(
        Rope(kind, one.factor("factor"), (original(text) if kind == "longrope" else original(one)) or None)
        for one, kind in kinds
        if kind
    )


def _attention(text: Fields, defaults: Mapping[str, int]) -> Attention:
    """Read the shape of layers with full attention, which Gemma 4 has other keys for."""
    usual = _usual(text, defaults)
    if "global_head_dim" not in defaults:
        return usual
    size = text.number("global_head_dim", default=defaults["global_head_dim"], most=_HEADS)
    equal = text.flag("attention_k_eq_v", default=False)
    kv_heads = text.number("num_global_key_value_heads", default=usual.kv_heads, most=_HEADS)
    return Attention(usual.heads, kv_heads if equal else usual.kv_heads, size)


def _usual(text: Fields, defaults: Mapping[str, int]) -> Attention:
    """As vLLM's `get_head_size` and `get_total_num_kv_heads`."""
    heads = text.number("num_attention_heads", default=defaults.get("num_attention_heads"), most=_HEADS)
    fewer = heads if text.nulled("num_key_value_heads") else defaults.get("num_key_value_heads", heads)
    kv_heads = text.number("num_key_value_heads", default=fewer, most=_HEADS)
    if heads % kv_heads:
        text.wrong("num_key_value_heads", f"is {kv_heads}, of which {heads} heads are no multiple")
    even = defaults.get("attention_expand", 1) * text.number("hidden_size") // heads
    default = even if text.nulled("head_dim") else defaults.get("head_dim", even)
    size = text.number("head_dim", default=default if default or not even else None, most=_HEADS)
    if size == 0:
        text.wrong("hidden_size", f"leaves nothing for each of {heads} heads")
    return Attention(heads, kv_heads, size)


def _latent(text: Fields, defaults: Mapping[str, int]) -> Attention:
    """As vLLM's `MLAAttention`, whose layers have one KV head."""
    keys = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    rank, rope, nope, value = (text.number(key, default=defaults[key], most=_HEADS) for key in keys)
    ranked = 0 if text.nulled("q_lora_rank") else defaults["q_lora_rank"]
    queries = text.number("q_lora_rank", default=ranked, least=0, most=_HEADS)
    latent = Latent(rank, rope, nope, value, queries)
    if text.has("index_topk") or "index_head_dim" in defaults:
        size = text.number("index_head_dim", default=defaults.get("index_head_dim"), most=_HEADS)
        each = text.number("index_n_heads", default=defaults.get("index_n_heads"), most=_HEADS)
        latent = replace(latent, index=size, index_heads=each, shares=_sharing(text))
    return Attention(text.number("num_attention_heads", most=_HEADS), 1, rank + rope, latent)


def _sharing(text: Fields) -> frozenset[int]:
    """Return the layers that take the tokens that an earlier one has selected, as in `DeepseekV2MLAAttention`."""
    layers, pattern = range(text.number("num_hidden_layers", most=_LAYERS)), text.data.get("index_topk_pattern")
    if isinstance(pattern, str | list):
        return frozenset(index for index in layers if list(pattern)[index : index + 1] == ["S"])
    if pattern is not None:
        text.wrong("index_topk_pattern", "is no text and no list")
    each, first = (text.number(f"index_{key}", default=n, most=_LAYERS) for key, n in _SHARING.items())
    return frozenset(index for index in layers if max(index - first + 1, 0) % each)


def _kinds(text: Fields, known: Architecture, layers: int, window: int) -> tuple[str, ...]:
    if known.hybrid:
        return kinds_of(text, known, layers)
    if known.chunked:
        return _chunked(text, layers) if window else (FULL,) * layers
    if kinds := listed(text, layers):
        return (*kinds[:-1], FULL) if known.parallel else kinds  # as transformers makes Gemma 4's last layer
    if not window or known.switched:
        return (FULL,) * layers
    none = layers + 1  # without a pattern, no layer has full attention
    each = text.number("sliding_window_pattern", default=known.pattern or none, most=_LAYERS + 1)
    last = layers - 1 if known.parallel else layers
    return tuple(SLIDING if (index + 1) % each and index != last else FULL for index in range(layers))


def _chunked(text: Fields, layers: int) -> tuple[str, ...]:
    """Read which layers have rotary positions, and with it chunks: vLLM does not ask `layer_types`."""
    turned = text.data.get("no_rope_layers") or []
    if not turned:
        each = text.number("no_rope_layer_interval", default=4, most=_LAYERS)
        turned = [int((index + 1) % each != 0) for index in range(layers)]
    if not isinstance(turned, list) or len(turned) != layers or not all(one in (0, 1) for one in turned):
        text.wrong("no_rope_layers", f"is not a list of {layers:,} times 0 or 1")
        return (FULL,) * layers
    return tuple(CHUNKED if one else FULL for one in turned)


def _experts(text: Fields, known: Architecture) -> Experts | None:
    defaults = known.defaults
    if known.single and MOE not in kinds_of(text, known, count_of(text, _LAYERS)):
        return None
    names = "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"
    count = text.number(*names, default=defaults["num_experts"], least=0)
    if count < (2 if known.hybrid else 1):
        return None
    keys = "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k"
    per_token = text.number(*keys, default=defaults["num_experts_per_tok"])
    if per_token > count:
        text.wrong("num_experts_per_tok", f"is {per_token}, of {count} experts")
    width = "moe_intermediate_size" if "moe_intermediate_size" in defaults else "intermediate_size"
    return Experts(count, per_token, text.number(width, default=defaults[width]), known.mlp)


def _width(text: Fields, known: Architecture, experts: Experts | None) -> int:
    """Read the width of a dense MLP; that of LFM2 is two thirds of what the config has, rounded up."""
    if known.hybrid and known.shared and not experts and not known.single:
        return text.number(known.shared, default=known.defaults[known.shared])  # a Granite 4 without experts
    dense = "intermediate_size_mlp" if "intermediate_size_mlp" in known.defaults else "intermediate_size"
    width = text.number("block_ff_dim", dense, default=known.defaults.get(dense, 0))
    unit = text.number("block_multiple_of", default=known.defaults.get("block_multiple_of", 0), least=0)
    if not unit or not text.flag("block_auto_adjust_ff_dim", default=True):
        return width
    return unit * ceil(int(text.factor("block_ffn_dim_multiplier") * int(2 * width / 3)) / unit)


def _drafts(text: Fields, known: Architecture) -> int:
    """Count the attention layers of multi-token prediction."""
    count = text.number(known.draft, default=known.defaults.get(known.draft, 1), least=0, most=_LAYERS)
    letters, kinds = text.text("mtp_hybrid_override_pattern"), text.texts("mtp_layers_block_type")
    if kinds:
        return count * sum(kind in ("attention", FULL) for kind in kinds)
    return count * letters.count("*") if letters else count


def _bounds(text: Fields, name: str, architecture: str) -> Model:
    """Return a model of an unknown architecture, with every layer taken for full attention.

    That is the most that it can take, unless a key tells of layers that keep something else beside attention. Notes in
    `text` what even that needs.
    """
    layers = text.number(*KEYS["layers"], most=_LAYERS)
    heads = text.number(*KEYS["heads"], most=_HEADS)
    hidden = text.number(*KEYS["hidden_size"])
    lengths = [text.number(key, most=_POSITIONS) for key in KEYS["length"] if text.has(key)]
    kv_heads, size = _largest(text, KEYS["kv_heads"]) or heads, _largest(text, KEYS["head_size"]) or -(-hidden // heads)
    also = sorted(key for key, value in text.data.items() if _BESIDE.search(key) and value)
    more = f", which may be more than full attention does: {', '.join(key[:40] for key in also[:3])}"
    keep = more if also else ": each is taken for full attention"
    called = f"architecture {architecture[:80]!r}" if architecture else "a config that names no architecture"
    return Model(
        name=name,
        architecture=architecture,
        layers=(FULL,) * layers,
        attention=Attention(heads, kv_heads, size),
        hidden_size=hidden,
        vocab_size=text.number("vocab_size", default=1, most=1 << 28),
        max_position_embeddings=min(lengths, default=_DEFAULT_LENGTH),
        intermediate_size=text.number("intermediate_size", "n_inner", default=0, least=0),
        tied=text.flag("tie_word_embeddings", default=False),
        unknown=(f"what the layers of {called} keep{keep}",),
        bounded=not also,
    )


def _largest(text: Fields, keys: Sequence[str]) -> int:
    """Read the largest number under any of the keys, each of which may list one for every layer."""
    values = {key: text.data[key] for key in filter(text.has, keys)}
    each = [(key, one) for key, value in values.items() for one in (value if isinstance(value, list) else [value])]
    return max((Fields({key: one}, text.where, text.problems).number(key, most=_HEADS) for key, one in each), default=0)
