"""The matrices of a decoder layer by name and size, and a vision tower's parameters, from the shapes in a config."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from vpatch.plan import (
    BOTH,
    CONVOLUTION,
    DELTA,
    KDA,
    LINEAR,
    MAMBA1,
    MAMBA2,
    MLP,
    MOE,
    SHARED,
    SLIDING,
    STATEFUL,
    Attention,
    Latent,
    LayerState,
    Model,
    Tower,
)
from vpatch.plan.architectures import TOWERS, Architecture
from vpatch.plan.checkpoint_files import Fields


class Parameters(NamedTuple):
    """Parameters under one name; those of a linear layer may be quantized. `whole`: each GPU has all of them."""

    name: str
    parameters: int
    linear: bool = True
    whole: bool = False


def matrices(model: Model, text: Fields, known: Architecture, index: int, kind: str) -> Iterator[Parameters]:
    """Yield the matrices of a decoder layer, `index` from 0, by their names in it."""
    if known.state == SHARED:
        mixer, network = [*_mixer(model, text, known, LINEAR, index)], [*_shared(model, text, known, index)]
    else:
        mixer = [] if kind in (MLP, MOE) else [*_mixer(model, text, known, kind, index)]
        network = [] if mixer and known.single else [*_network(model, text, known, index, kind)]
    yield Parameters("norms", (1 if known.single else 2) * model.hidden_size, linear=False)
    for part in (*mixer, *network):
        yield part._replace(name=f"mixer.{part.name.partition('.')[2]}") if known.single else part
    if model.own_width:
        own = ("per_layer_input_gate", "per_layer_projection")
        yield from (Parameters(name, model.hidden_size * model.own_width) for name in own)


def _network(model: Model, text: Fields, known: Architecture, index: int, kind: str) -> Iterator[Parameters]:
    hidden, experts = model.hidden_size, model.experts
    dense = experts is None or kind == MLP or _is_dense(text, known, index)
    if dense or known.parallel:
        yield from _mlp(known, "mlp", hidden, model.intermediate_size)
    if dense or experts is None:
        return
    yield Parameters("mlp.gate", hidden * experts.count, linear=False)
    inner = text.number("moe_latent_size", default=hidden)  # of a Nemotron-H, experts work in a smaller space
    if inner != hidden:
        yield Parameters("mlp.fc1_latent_proj", 2 * hidden * inner)
    yield from _mlp(known, "mlp.experts.0", inner, experts.intermediate_size, experts.count)
    if known.shared:
        width = text.number(known.shared, default=known.defaults[known.shared], least=0)
        if known.shared.endswith("shared_experts"):
            name = "mlp.shared_experts"
            width *= text.number("moe_shared_expert_intermediate_size", default=experts.intermediate_size)
        elif known.shared == "shared_expert_intermediate_size":
            name = "mlp.shared_expert"
            yield Parameters("mlp.shared_expert_gate", hidden)
        else:
            name = "mlp.shared_expert" + "s" * known.single
            width *= text.number("n_shared_experts", default=1, least=0)
        yield from _mlp(known, name, hidden, width)


def _is_dense(text: Fields, known: Architecture, index: int) -> bool:
    """Whether a layer of a model with experts has none: families of models have keys of their own for it."""

    def number(*keys: str, default: int, least: int = 0) -> int:
        return text.number(*keys, default=known.defaults.get(keys[0], default), least=least)

    first = number("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers", default=0)
    last = number("moe_layer_end_index", default=-1, least=-1)
    period, offset = number("expert_layer_period", default=1, least=1), number("expert_layer_offset", default=0)
    step = number("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", default=1, least=1)
    listed = text.data.get("mlp_only_layers")
    rules = {
        "GLM, DeepSeek, LFM2, Ernie: before the first with experts": index < first,
        "Ernie: behind the last": -1 < last < index,
        "Jamba: experts in a layer of each period": index % period != offset % period,
        "Qwen, Llama 4, Ernie: experts in each so-many-th": (index + 1) % step != 0,
        "DeepSeek: the same, from the first on": index % number("moe_layer_freq", default=1, least=1) != 0,
        "Qwen: by number": isinstance(listed, list) and index in listed,
    }
    return any(rules.values())


def _mixer(model: Model, text: Fields, known: Architecture, kind: str, index: int) -> Iterator[Parameters]:
    hidden = model.hidden_size
    if kind != LINEAR:
        yield from _attention(model, known, kind, index)
    if kind not in STATEFUL or model.state is None:
        return
    state, channels = model.state, model.state.channels()
    if state.kind == KDA:
        yield from _kda(state, hidden)
        return
    name = {DELTA: "linear_attn", CONVOLUTION: "conv"}.get(state.kind, "mamba")
    yield Parameters(f"{name}.conv1d", state.kernel * channels, linear=False)
    projections = {
        DELTA: {"in_proj_qkv": channels, "in_proj_z": state.width, "in_proj_b": state.heads, "in_proj_a": state.heads},
        MAMBA2: {"in_proj": state.width + channels + state.heads},
        MAMBA1: {"in_proj": 2 * state.width},
        CONVOLUTION: {"in_proj": 3 * state.width},
    }
    widths = {**projections[state.kind], "out_proj": state.width}
    yield from (Parameters(f"{name}.{one}", hidden * width) for one, width in widths.items())
    if state.kind == MAMBA1:
        usual = ceil(hidden / 16)
        rank = usual if text.data.get("mamba_dt_rank") == "auto" else text.number("mamba_dt_rank", default=usual)
        # Projections of the time step, and others; its matrix A is in float32.
        yield Parameters(f"{name}.x_proj", state.width * (2 * rank + 4 * state.state_size))


def _shared(model: Model, text: Fields, known: Architecture, index: int) -> Iterator[Parameters]:
    """Yield the attention and the MLP that layers of a Zamba2 share: the first that has them, with all adapters."""
    sharing = [layer for layer, kind in enumerate(model.layers) if kind == BOTH]
    if index not in sharing:
        return
    hidden, wide, blocks = model.hidden_size, 2 * model.hidden_size, text.number("num_mem_blocks", default=1)
    yield Parameters("linear", hidden * hidden, whole=True)
    users = sharing[sharing.index(index) :: blocks] if index in sharing[:blocks] else []
    if not users:
        return
    rank, block = text.number("adapter_rank", default=128), "shared_transformer"
    widths = dict.fromkeys(("q_proj", "k_proj", "v_proj"), wide) | {"o_proj": hidden}
    yield from (Parameters(f"{block}.self_attn.{one}", wide * width) for one, width in widths.items())
    yield from _mlp(known, f"{block}.feed_forward", hidden, model.intermediate_size)
    yield Parameters(f"{block}.feed_forward.adapter", len(users) * rank * (hidden + 2 * model.intermediate_size))
    if text.flag("use_shared_attention_adapter", default=False):
        yield Parameters(f"{block}.self_attn.adapter", len(users) * rank * 6 * wide)


def _kda(state: LayerState, hidden: int) -> Iterator[Parameters]:
    yield Parameters("self_attn.conv1d", 2 * state.kernel * state.channels(), linear=False)  # in float32
    widths = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), state.width) | {"b_proj": state.heads}
    yield from (Parameters(f"self_attn.{one}", hidden * width) for one, width in widths.items())
    for gate in ("f", "g"):  # of low rank
        yield Parameters(f"self_attn.{gate}_a_proj", hidden * state.head_size, whole=True)
        yield Parameters(f"self_attn.{gate}_b_proj", state.head_size * state.width)


def _attention(model: Model, known: Architecture, kind: str, index: int) -> Iterator[Parameters]:
    attention, hidden = model.local if kind == SLIDING and model.local else model.attention, model.hidden_size
    if attention.latent:
        yield from _latent(attention, attention.latent, hidden, index)
        return
    queries, keys = attention.heads * attention.head_size, attention.kv_heads * attention.head_size
    if known.fused:
        yield Parameters("attention.query_key_value", hidden * (queries + 2 * keys))
        yield Parameters("attention.dense", hidden * queries)
        return
    widths = {"q_proj": queries * (2 if known.gated else 1), "o_proj": queries}
    if index < len(model.layers) - model.borrowing or index >= len(model.layers):
        widths |= {"k_proj": keys, "v_proj": keys}
    yield from (Parameters(f"self_attn.{one}", hidden * width) for one, width in widths.items())


def _latent(attention: Attention, latent: Latent, hidden: int, index: int) -> Iterator[Parameters]:
    heads, queries = attention.heads, latent.queries
    query = heads * (latent.nope + latent.rope)
    if queries:
        yield Parameters("self_attn.q_a_proj", hidden * queries, whole=True)
        yield Parameters("self_attn.q_b_proj", queries * query)
    else:
        yield Parameters("self_attn.q_proj", hidden * query)
    yield Parameters("self_attn.kv_a_proj_with_mqa", hidden * attention.head_size, whole=True)
    yield Parameters("self_attn.kv_b_proj", latent.rank * heads * (latent.nope + latent.value))
    yield Parameters("self_attn.o_proj", heads * latent.value * hidden)
    if latent.index and index not in latent.shares:
        yield Parameters("self_attn.indexer.wq_b", queries * latent.index_heads * latent.index, whole=True)
        yield Parameters("self_attn.indexer.wk", hidden * latent.index, whole=True)
        yield Parameters("self_attn.indexer.weights_proj", hidden * latent.index_heads, linear=False, whole=True)


def _mlp(known: Architecture, name: str, hidden: int, width: int, count: int = 1) -> Iterator[Parameters]:
    names = ("gate_proj", "up_proj", "down_proj")[3 - known.mlp :]
    return (Parameters(f"{name}.{one}", hidden * width * count) for one in names)


def tower_of(config: Fields, kind: str, width: int) -> Tower:
    """Read the vision tower of a model whose decoder has so wide hidden states; note in `config` what is wrong.

    Source: the towers' modules in vLLM, and `MultiModalBudget` with each model's `get_mm_max_tokens_per_item`. The
    largest picture is that of the processor's default settings; a checkpoint may have others beside its config.json.
    """
    row, vision = TOWERS[kind], config.inside("vision_config")
    defaults, gated = row["defaults"], row.get("gated", False)

    def size(*keys: str) -> int:
        default = next((defaults[key] for key in keys if key in defaults), 0)
        return vision.number(*keys, default=default, least=0, most=1 << 16)

    hidden, mlp = size("hidden_size"), size("intermediate_size")
    side = size("image_size") // max(size("patch_size"), 1)
    pixels = size("in_channels", "num_channels") * size("patch_size") ** 2 * max(size("temporal_patch_size"), 1)
    # How many patches become one, on a side; Mistral has it outside of the tower's config.
    outer = config.number("spatial_merge_size", default=defaults.get("spatial_merge_size", 1), most=64)
    merged = vision.number("spatial_merge_size", default=outer, most=64) ** 2
    patches = row.get("patches", side * side)

    attention, network = 4 * hidden * hidden, (3 if gated else 2) * hidden * mlp
    vectors = 9 * hidden + mlp  # norms and biases
    positions = size("num_position_embeddings") or (side * side if row.get("positions") else 0)
    parameters = size("depth", "num_hidden_layers") * (attention + network + vectors) + hidden * (pixels + positions)
    match row["projector"]:
        case "linear":
            parameters += hidden * width
        case "pixtral":
            parameters += hidden * hidden * merged + hidden * width + width * width
        case "llama4":
            output = size("vision_output_dim") * width
            parameters += mlp * size("projector_input_dim") + size("projector_output_dim") ** 2 + output
        case "merger":  # one at the end, and one for each layer of DeepStack
            listed = vision.data.get("deepstack_visual_indexes")
            mergers = 1 + (len(listed) if isinstance(listed, list) else row.get("mergers", 0))
            parameters += mergers * hidden * merged * (hidden * merged + (size("out_hidden_size") or width))
    if config.has("audio_config"):
        parameters += _audio(config.inside("audio_config"), width)
    # As vLLM counted for Qwen2.5-VL and Qwen3.5.
    results = 4 * hidden + (4 if gated else 2) * mlp + pixels
    tokens = row.get("tokens", patches // merged)
    return Tower(parameters, patches, tokens, results, row.get("frames", 1), row.get("measured", False))


def _audio(audio: Fields, width: int) -> int:
    """Count the parameters of the audio tower that small Gemma 4 have beside: a Conformer."""
    layers, hidden = audio.number("num_hidden_layers", default=12), audio.number("hidden_size", default=1024)
    out = audio.number("output_proj_dims", default=1536)
    return (24 * layers * hidden + hidden + out) * hidden + out * width
