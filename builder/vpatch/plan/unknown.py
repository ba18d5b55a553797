"""What plan does not model in a config, in words; and bounds for a model of an architecture that it does not know."""

from __future__ import annotations

from typing import Any

from vpatch.plan.architectures import Architecture
from vpatch.plan.jsonfile import Fields
from vpatch.plan.model import FULL, LINEAR, Attention, Model

LAYERS, HEADS, POSITIONS = 1024, 65_536, 1 << 32
"""More of them than any model has: what is above is refused before memory is spent."""

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
    "num_global_key_value_heads",
)
_HEAD_SIZES = ("head_dim", "global_head_dim", "hidden_size_per_head", "kv_channels", "v_head_dim")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_DEFAULT_LENGTH = 2048
"""What vLLM takes where a config says none."""


def reasons(text: Fields, known: Architecture) -> tuple[str, ...]:
    """Say what in the config of a known architecture is not modelled."""
    found = []
    default = 0 if text.nulled("sliding_window") else known.window
    window = text.number("sliding_window", default=default, least=0, most=POSITIONS)
    if window and (not known.switched or text.flag("use_sliding_window", default=False)):
        found.append(f"a sliding window of {window:,} tokens bounds what attention keeps")
    kinds = {FULL, LINEAR} if known.hybrid else {FULL}
    if others := sorted(set(text.texts("layer_types")) - kinds):
        found.append(f"layers of another kind: {', '.join(kind[:40] for kind in others[:5])}")
    if text.number("attention_chunk_size", default=0, least=0, most=POSITIONS):
        found.append("attention is chunked")
    return tuple(found)


def model(text: Fields, name: str, architecture: str) -> Model:
    """Give bounds for a model of an architecture that plan does not know: every layer is full attention.

    Noted in `text` is what even that needs, where it is missing.
    """
    layers = text.number(*_LAYERS, most=LAYERS)
    heads = text.number(*_HEADS, most=HEADS)
    hidden = text.number(*_HIDDEN)
    lengths = [text.number(key, most=POSITIONS) for key in _LENGTHS if text.has(key)]
    called = f"architecture {architecture[:80]!r}" if architecture else "a config that names no architecture"
    return Model(
        name=name,
        architecture=architecture,
        layers=(FULL,) * layers,
        # Of several, as for layers that differ, the largest.
        attention=Attention(heads, _most(text, _KV_HEADS) or heads, _most(text, _HEAD_SIZES) or -(-hidden // heads)),
        hidden_size=hidden,
        vocab_size=text.number("vocab_size", default=1, most=1 << 28),
        max_position_embeddings=min(lengths, default=_DEFAULT_LENGTH),
        intermediate_size=text.number("intermediate_size", "n_inner", default=0, least=0),
        tied=text.flag("tie_word_embeddings", default=False),
        unknown=(f"what the layers of {called} keep: each is taken for full attention, the most that one can take",),
    )


def _most(text: Fields, keys: tuple[str, ...]) -> int:
    values: list[tuple[str, Any]] = []
    for key in filter(text.has, keys):
        value = text.data[key]
        values += [(key, one) for one in (value if isinstance(value, list) else [value])]
    fields = [(key, Fields({key: value}, text.where, text.problems)) for key, value in values]
    return max((one.number(key, most=HEADS) for key, one in fields), default=0)
