"""The architectures that plan knows, by `architectures.toml`: how to read the layers and states of a config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vpatch.plan import BOTH, FULL, KDA, LINEAR, MAMBA2, MLP, MOE, SHARED, LayerState
from vpatch.plan.checkpoint_files import Fields
from vpatch.plan.deployment import inherited, table


@dataclass(frozen=True)
class Architecture:
    """How to read a config of one architecture.

    `defaults` holds for keys that are left out. Without one, there are as many KV heads as heads, and `head_dim` is
    hidden size / heads; 0 means that vLLM requires the key. `window` is the default of `sliding_window`, which counts
    only with `use_sliding_window` if `switched`. Without `layer_types`, each `pattern`-th layer has full attention, the
    others a window; 0: all have it. Of a hybrid, they are then of the kind `every`, but for those that are numbered.
    `draft` is the key that counts layers of multi-token prediction. `state` names the keys of the states, in `STATES`;
    `state_dtype` is the key of their dtype, without which it is the model's. `single`: a layer is a mixer or an MLP,
    not both. `gated`: queries have an output gate of their size. `shared` is the key for the width, or the number, of
    shared experts. `mlp` is how many matrices a dense layer and an expert have. `latent`: it has multi-head latent
    attention. `vision` names the tower. `chunked`: the window is a chunk, of layers with rotary positions. `parallel`:
    as in Gemma 4, experts, if there are any, are beside a dense layer, and layers can share a KV cache. `since` is the
    first release that has it. `fused`: queries, keys and values have one matrix in the checkpoint. `undrafted`: vLLM
    does not load the layers of multi-token prediction. `listed_since` is the first release that reads
    `layers_block_type`. An entry without names is a decoder, by its own `model_type`, of the model that it is `like`.
    """

    names: Sequence[str]
    model_type: str
    defaults: Mapping[str, int]
    state: str = ""
    experts: bool = False
    tied: bool = False
    vision: str = ""
    since: str = ""
    window: int = 0
    chunked: bool = False
    inclusive: bool = False
    parallel: bool = False
    pattern: int = 0
    every: str = ""
    switched: bool = False
    draft: str = ""
    state_dtype: str = ""
    single: bool = False
    gated: bool = False
    shared: str = ""
    mlp: int = 3
    latent: bool = False
    fused: bool = False
    undrafted: bool = False
    listed_since: str = ""

    @property
    def hybrid(self) -> bool:
        """Whether its layers may keep a state."""
        return bool(self.state)


_TABLE = table("architectures.toml")
ARCHITECTURES = tuple(Architecture(**row) for row in inherited(_TABLE["architecture"], "model_type"))
STATES: Mapping[str, Mapping[str, Sequence[str]]] = _TABLE["states"]
KEYS: Mapping[str, Sequence[str]] = _TABLE["keys"]
TOWERS: Mapping[str, Mapping[str, Any]] = {row["name"]: row for row in inherited(_TABLE["tower"], "name")}
KNOWN = {name: architecture for architecture in ARCHITECTURES for name in architecture.names}
DECODERS = {architecture.model_type: architecture for architecture in ARCHITECTURES if not architecture.names}


DTYPES = ("float32", "bfloat16", "float16")
LETTERS = {"M": LINEAR, "*": FULL, "-": MLP, "E": MOE}
"""Kinds of layers in the pattern of a Nemotron-H."""
K3 = "attn_res_block_size", "mla_use_output_gate", "routed_expert_hidden_size"
LINEAR_CONFIG = "linear_attn_config"
LISTED = "layers_block_type"
"""The list that Nemotron-H has in place of a pattern since transformers 5."""

_NAMES = {"mamba": LINEAR, "conv": LINEAR, "attention": FULL}
_INTERVAL = 4  # each fourth layer of a Gated DeltaNet hybrid is full attention, unless the config says otherwise
_MOST = 1 << 20
HYBRID = {FULL, LINEAR, *_NAMES}
"""What `layer_types` calls the layers of a hybrid."""


def state_of(text: Fields, known: Architecture, dtype: str) -> LayerState:
    """Return the state of a layer of a known hybrid architecture, in the model's dtype unless the config has one."""
    if known.state == KDA:  # `MambaStateShapeCalculator.kda_state_shape`, whose state is in float32
        linear = text.inside(LINEAR_CONFIG)
        heads, head_size = linear.number("num_heads", most=_MOST), linear.number("head_dim", most=_MOST)
        kernel = linear.number("short_conv_kernel_size", most=_MOST)
        return LayerState(KDA, heads, head_size, heads, head_size, kernel, "float32")
    keys = STATES[known.state]

    def size(field: str, default: int) -> int:
        names = keys.get(field, ())
        return text.number(*names, default=known.defaults[names[0]], most=_MOST) if names else default

    expanded = text.number("mamba_expand", default=known.defaults.get("mamba_expand", 1), most=64)
    inner = expanded * text.number("hidden_size")
    usual = inner if text.nulled("mamba_d_ssm") else known.defaults.get("mamba_d_ssm", inner)
    inner = text.number("mamba_d_ssm", "conv_dim", default=usual, most=_MOST)
    heads = size("heads", inner)
    head_size = size("head_size", inner // heads)
    given = text.data.get("mamba_d_head", "auto")
    if "head_size" not in keys and (heads * head_size != inner or given not in ("auto", head_size)):
        text.wrong(keys["heads"][0], f"is {heads}, which does not divide {inner:,} channels as the config says")
    groups, state_size = size("groups", 0), size("state_size", 0)
    if groups and heads % groups:
        text.wrong(keys["heads"][0], f"is {heads}, no multiple of {groups} groups")
    named = text.text(known.state_dtype) if known.state_dtype else "auto"
    if named not in ("", "auto", *DTYPES):
        text.wrong(known.state_dtype, f"is {named[:40]!r}, not one of {', '.join(DTYPES)}")
    kind = MAMBA2 if known.state.startswith(MAMBA2) else known.state
    # Of a Nemotron-H without the key, releases differ: `NemotronHForCausalLMConfig`.
    stored = named if named in DTYPES or (kind == MAMBA2 and not named) else dtype
    return LayerState(kind, heads, head_size, groups, state_size, size("kernel", 0), stored, size("chunk", 0))


def not_modeled(text: Fields, known: Architecture) -> Iterator[str]:
    """Yield what plan does not know of a hybrid's other parts."""
    if known.state == KDA:
        yield from (f"layers as in Kimi K3: {key}" for key in K3 if text.data.get(key))
        if not text.flag("mla_use_nope", default=False):
            yield "latent attention has rotary positions, which vLLM refuses"
    if known.state == SHARED and text.flag("use_long_context", default=False):
        yield "positions are extended: use_long_context"


def kinds_of(text: Fields, known: Architecture, layers: int) -> tuple[str, ...]:
    """Return the kind of each layer of a known hybrid architecture."""
    if known.single:
        return _blocks(text, layers, {*LETTERS.values()}) or _pattern(text, layers)
    if known.state == SHARED:
        return _blocks(text, layers, {LINEAR, BOTH})
    if known.state == KDA:
        states = text.inside(LINEAR_CONFIG).data.get("kda_layers")  # from 1
        return tuple(LINEAR if isinstance(states, list) and index + 1 in states else FULL for index in range(layers))
    if kinds := listed(text, layers):
        return tuple(_NAMES.get(kind, kind) for kind in kinds)
    if known.every:
        full = text.data.get("full_attn_idxs")
        return tuple(FULL if isinstance(full, list) and one in full else known.every for one in range(layers))
    usual = known.defaults.get("attn_layer_period", _INTERVAL)
    each = text.number("attn_layer_period", "full_attention_interval", default=usual, most=_MOST)
    offset = text.number("attn_layer_offset", default=known.defaults.get("attn_layer_offset", each - 1), least=0)
    return tuple(FULL if index % each == offset else LINEAR for index in range(layers))


def count_of(text: Fields, most: int) -> int:
    """Return the number of layers, which a config with `layers_block_type` may leave out."""
    named = text.texts(LISTED)
    return text.number("num_hidden_layers", default=len(named) or None, most=most)


def listed(text: Fields, layers: int, key: str = "layer_types") -> tuple[str, ...]:
    """Read `layer_types`, which names the kind of each layer if a config has it."""
    kinds = text.texts(key)
    if kinds and len(kinds) != layers:
        text.wrong(key, f"names {len(kinds):,} layers, num_hidden_layers says {layers:,}")
    return kinds


def _blocks(text: Fields, layers: int, known: set[str]) -> tuple[str, ...]:
    """Read `layers_block_type`; if a Nemotron-H has a pattern beside it, transformers prefers the list."""
    kinds = tuple(_NAMES.get(kind, kind) for kind in listed(text, layers, LISTED))
    if others := sorted({*kinds} - known):
        text.wrong(LISTED, f"names layers of another kind: {', '.join(kind[:40] for kind in others[:5])}")
    return kinds


def _pattern(text: Fields, layers: int) -> tuple[str, ...]:
    """Read a pattern of letters, one for each layer."""
    key = "hybrid_override_pattern"
    letters = text.text(key)
    if not letters:
        text.wrong(key, f"is not there, nor is {LISTED}")
    elif len(letters) != layers or not set(letters) <= set(LETTERS):
        text.wrong(key, f"is {letters[:40]!r}, not {layers} of the letters {' '.join(LETTERS)}")
        return ()
    return tuple(LETTERS[letter] for letter in letters)
