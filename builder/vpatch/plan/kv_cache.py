"""The KV cache as vLLM lays it out: bytes of a token and a state, block size, groups of layers, and what blocks hold.

Source: `Platform._align_hybrid_block_size`, and `get_kv_cache_groups` and `get_kv_cache_config_from_groups` in vLLM's
`v1/core`. All layers of a model share one pool of blocks. Of it, a group of attention layers takes a block for
`block_size` tokens, of the last ones only if they have a window, and a group of layers with a state a fixed number for
each request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, lcm

from vpatch.errors import Failure, Problem
from vpatch.plan import ATTENTIVE, CHUNKED, FULL, SLIDING, STATEFUL, Attention, Model
from vpatch.plan import latent as mla
from vpatch.plan.defaults import in_second_runner
from vpatch.plan.deployment import (
    BLACKWELL,
    CONSUMER_BLACKWELL,
    DTYPE_BYTES,
    FP8,
    HOPPER,
    KERNEL_BLOCK,
    NVFP4,
    PER_TOKEN_HEAD,
    TURBOQUANT,
    Deployment,
)
from vpatch.plan.refusals import check, skipped_layers

_NVFP4_GROUP = 16  # elements that share a scale, of one byte
_LONGEST = 1 << 33  # tokens; more than any model has

# Bits per element of keys (8: FP8, with nothing else stored) and of values.
_TURBOQUANT_BITS = dict(zip(TURBOQUANT, ((8, 4), (4, 4), (3, 4), (3, 3)), strict=True))


@dataclass(frozen=True)
class Layout:
    """The layout of a deployment's KV cache, per GPU.

    A block holds `block_size` tokens of one group of layers. Of it, an attention layer takes `page_bytes`, and a
    linear-attention layer `state_bytes`, padded to a page. `groups` has the number of layers of each group:
    `attention_groups` come first and grow with the context; then `window_groups`, up to `retained` tokens, in blocks of
    `window_block` and `spare_blocks` more; each other takes `state_blocks` for a request, and if `states_grow` one more
    for each `block_size` tokens. `bytes_per_block` is the size of a block on a GPU of each pipeline stage.
    """

    block_size: int
    page_bytes: int
    groups: tuple[int, ...]
    attention_groups: int
    bytes_per_block: tuple[int, ...]
    state_bytes: int = 0
    state_blocks: int = 0
    states_grow: bool = False
    window_groups: int = 0
    retained: int = 0
    window_block: int = KERNEL_BLOCK
    spare_blocks: int = 0


@dataclass(frozen=True)
class Capacity:
    """What a KV cache of some size holds. `printed` is what vLLM prints: `slots` or `tokens`, by the release."""

    blocks: int
    blocks_per_request: int
    slots: int
    tokens: int
    concurrency: float
    printed: int


def layout(model: Model, deployment: Deployment) -> Layout:
    """Return the layout of a deployment's KV cache; raise `Failure` if the release or the model has no such layout."""
    deployment = mla.with_default(model, deployment)
    check(model, deployment)
    stages = deployment.stages(len(model.layers))
    # The layers of multi-token prediction come after all others, on the last stage.
    drafts = model.draft_layers if deployment.speculative_tokens else 0
    stages[-1] = range(stages[-1].start, stages[-1].stop + drafts)
    if SLIDING in model.layers or CHUNKED in model.layers:
        return _windowed(model, deployment, stages)
    attention = model.attention.shard(deployment.tensor_parallel_size)
    per_token = token_bytes(attention, deployment.kv_cache_dtype, model.dtype)
    if latent := attention.latent:
        per_token = mla.packed(attention, latent, deployment) or per_token
    return (_hybrid if model.hybrid else _dense)(model, deployment, per_token, stages)


def _dense(model: Model, deployment: Deployment, per_token: int, stages: Sequence[range]) -> Layout:
    """Lay out a model whose layers are all attention: in one group, whose pages may differ."""
    skipped, attention = skipped_layers(model, deployment), model.attention.shard(deployment.tensor_parallel_size)
    # An unquantized element takes as many bytes as its type, one of a packed cache takes one.
    wide = DTYPE_BYTES[model.dtype] if skipped and deployment.release.aligns_skipped else 1
    unquantized = token_bytes(attention, "auto", model.dtype)
    sizes = [sum(unquantized if index in skipped else per_token for index in stage) for stage in stages]
    count, block_size = stages[-1].stop, KERNEL_BLOCK * wide
    blocks = tuple(block_size * size for size in sizes)
    if latent := attention.latent:
        block_size = mla.block_size(attention, latent, deployment)
        indexers = [mla.indexers(latent, deployment, stage) for stage in stages]
        count += sum(number for number, _ in indexers)  # they are layers of their own
        sizes = [size + number * each for size, (number, each) in zip(sizes, indexers, strict=True)]
        blocks = tuple(mla.aligned(latent, deployment, block_size * size, per_token) for size in sizes)
    return Layout(block_size, block_size * per_token, (count,), attention_groups=1, bytes_per_block=blocks)


def _hybrid(model: Model, deployment: Deployment, per_token: int, stages: Sequence[range]) -> Layout:
    """Lay out a model with states: blocks of attention are as long as a state is large."""
    assert model.state  # noqa: S101 - for mypy; each hybrid model has it
    release, drafts = deployment.release, deployment.speculative_tokens
    state, exports = _state_bytes(model, deployment), _exports(model, deployment)
    grow = keeps_every_state(model, deployment)
    # The tokens of which a block has a multiple, as the kernels of attention and of states want.
    granule = 64 if model.delta and exports else KERNEL_BLOCK  # of FlashInfer's kernels
    if latent := model.attention.latent:
        granule = max(release.latent_granule, mla.block_size(model.attention, latent, deployment))
    if grow:
        granule = lcm(granule, model.state.chunk)
        state_blocks = drafts if release.keeps_states_of_drafts else 0
    else:
        state_blocks = 1 + deployment.enable_prefix_caching + exports + drafts
    block_size = granule * ceil(state / (granule * per_token))
    fixed = [index for index, kind in enumerate(model.layers) if kind in STATEFUL]
    growing = [index for index, kind in enumerate(model.layers) if kind in ATTENTIVE]
    groups, count, sizes = _grouped([*growing, *range(len(model.layers), stages[-1].stop)], fixed, stages)
    blocks = tuple(block_size * per_token * size for size in sizes)
    return Layout(block_size, block_size * per_token, groups, count, blocks, state, state_blocks, grow)


def keeps_every_state(model: Model, deployment: Deployment) -> bool:
    """Whether prefix caching keeps a state for each block of a request: `mamba_cache_mode` "all", not "align"."""
    release = deployment.release
    if not (model.state and model.state.chunk and release.keeps_every_state and deployment.enable_prefix_caching):
        return False
    return not (deployment.speculative_tokens and release.aligns_drafts)


def _exports(model: Model, deployment: Deployment) -> bool:
    """Whether prefill kernels export states on the way; those of Gated DeltaNet are FlashInfer's, on newer GPUs."""
    state, major = model.state, deployment.gpu.major
    if not (state and state.kind in deployment.release.exports_states and deployment.enable_prefix_caching):
        return False
    return not model.delta or major == HOPPER or (major in {BLACKWELL, CONSUMER_BLACKWELL} and state.state_size == 128)


def _state_bytes(model: Model, deployment: Deployment) -> int:
    """Bytes of a request's state in one layer on a GPU, by `MambaStateShapeCalculator`, which knows each kind."""
    state, ranks, given = model.state, deployment.tensor_parallel_size, deployment.mamba_ssm_cache_dtype
    assert state  # noqa: S101 - for mypy; each hybrid model has it
    inputs = state.kernel - 1 + deployment.speculative_tokens
    convolution = state.channels(ranks) * inputs * DTYPE_BYTES[model.dtype]
    dtype = (state.dtype or deployment.release.state_dtype) if given == "auto" else given
    return convolution + state.width // ranks * state.state_size * DTYPE_BYTES[dtype]


def _windowed(model: Model, deployment: Deployment, stages: Sequence[range]) -> Layout:
    """Lay out a model with sliding windows or chunks: `max_admission_blocks_per_request` of their specs.

    If a token of one kind of layers is larger, blocks of the other have more, or are padded if it is no multiple:
    `unify_kv_cache_spec_page_size`.
    """
    release = deployment.release
    own = model.layers[: len(model.layers) - model.borrowing]
    full, local = ([index for index, kind in enumerate(own) if (kind == FULL) is whole] for whole in (True, False))
    tokens = [
        token_bytes(shape.shard(deployment.tensor_parallel_size), deployment.kv_cache_dtype, model.dtype)
        for shape in (model.attention, model.local or model.attention)
    ]
    # Kernels for an FP8 cache of heads of 512 on Hopper have tiles of 64 tokens.
    tiled = deployment.kv_cache_dtype in ("fp8", "fp8_e4m3") and deployment.gpu.major == HOPPER
    wide = model.local is not None and model.attention.head_size == 512
    smallest = 64 if tiled and wide and release.tiles_fp8_heads else KERNEL_BLOCK
    page = smallest * max(tokens)
    if any(max(tokens) % size for size in tokens) and not release.pads_pages:
        raise Failure(Problem("no such KV cache", model.name, "its kinds of layers have no common size of a block"))
    block, window_block = (smallest if max(tokens) % size else page // size for size in tokens)
    if not full:
        page, block, window_block = smallest * tokens[1], smallest, smallest
    groups, count, sizes = _grouped(full, local, stages) if full else ((len(own),), 0, [len(stage) for stage in stages])
    # A window may begin inside of a block, a chunk does not.
    chunked = CHUNKED in own
    before = model.window if chunked else model.window - 1 + (model.inclusive and release.includes_last)
    return Layout(
        block,
        page,
        groups,
        count,
        tuple(page * size for size in sizes),
        window_groups=len(groups) - count,
        retained=before + deployment.max_num_batched_tokens * _batches(model, deployment),
        window_block=window_block,
        spare_blocks=not chunked,
    )


def _batches(model: Model, deployment: Deployment) -> int:
    """Return how many batches are on their way at once, as `VllmConfig.max_concurrent_batches` counts them."""
    release, stages = deployment.release, deployment.pipeline_parallel_size
    if not release.retains_in_flight:
        return 1
    overlapping = release.overlaps_stages or in_second_runner(model, release)
    return stages + 1 if overlapping or stages == 1 else stages


def _grouped(
    first: Sequence[int], second: Sequence[int], stages: Sequence[range]
) -> tuple[tuple[int, ...], int, list[int]]:
    """Divide layers of two kinds into groups of one kind each.

    Returns the number of layers in each, how many groups are of the first kind, and the layers of the largest group on
    each stage.
    """
    # A group has as many layers as the rarer kind, unless the other kind has less than half as many more.
    least, most = sorted((len(first), len(second)))
    size = most if most < least * 1.5 else least
    counts = [(kind, ceil(len(kind) / size)) for kind in (first, second)]
    groups = [kind[start::count] for kind, count in counts for start in range(count)]
    sizes = [max(sum(index in stage for index in group) for group in groups) for stage in stages]
    if not all(sizes):
        raise Failure(Problem("cannot divide the model", f"{len(stages)} stages", "a stage would have no KV cache"))
    return tuple(map(len, groups)), counts[0][1], sizes


def token_bytes(attention: Attention, kv_cache_dtype: str, dtype: str) -> int:
    """Return the bytes of one token's keys and values in one layer on a GPU; `dtype` is the model's."""
    size = attention.head_size
    if kv_cache_dtype in TURBOQUANT:  # `TurboQuantConfig.slot_size_aligned`
        key_bits, value_bits = _TURBOQUANT_BITS[kv_cache_dtype]
        keys = size if key_bits == 8 else ceil(size * key_bits / 8) + 2  # packed, with a norm
        values = ceil(size * value_bits / 8) + 4  # packed, with scale and zero
        return attention.kv_heads * (keys + values + (keys + values) % 2)
    vectors = attention.kv_heads * (1 if attention.latent else 2)
    if kv_cache_dtype in NVFP4:
        return vectors * (size // 2 + size // _NVFP4_GROUP)
    if kv_cache_dtype in PER_TOKEN_HEAD:
        return vectors * ((size // 2 if kv_cache_dtype.startswith("int4") else size) + DTYPE_BYTES["float32"])
    stored = "fp8" if kv_cache_dtype in FP8 else dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    return vectors * size * DTYPE_BYTES[stored]


def capacity(layout: Layout, deployment: Deployment, budgets: Sequence[int]) -> Capacity:
    """Return what the KV cache holds if it has `budgets` bytes on the GPUs of each stage: the smallest decides."""
    blocks = max(0, min(budget // size for budget, size in zip(budgets, layout.bytes_per_block, strict=True)))
    needed = blocks_for(layout, deployment.max_model_len)
    concurrency, shortest = blocks / needed, layout.block_size
    if not deployment.enable_prefix_caching and layout.state_blocks:
        shortest = min(shortest, deployment.max_model_len)  # a state's block is as long as a request
    if layout.window_groups:
        shortest = min(shortest, layout.window_block)
    slots, tokens = blocks // len(layout.groups) * shortest, int(concurrency * deployment.max_model_len)
    return Capacity(blocks, needed, slots, tokens, concurrency, slots if deployment.release.prints_slots else tokens)


def blocks_for(layout: Layout, tokens: int) -> int:
    """Return the number of blocks that a request of `tokens` takes in all groups."""
    states = len(layout.groups) - layout.attention_groups - layout.window_groups
    windows = layout.window_groups * (ceil(min(layout.retained, tokens) / layout.window_block) + layout.spare_blocks)
    each = ceil(tokens / layout.block_size)
    kept = layout.state_blocks + (each if layout.states_grow else 0)
    return layout.attention_groups * each + windows + states * kept


def longest(layout: Layout, deployment: Deployment, blocks: int) -> int:
    """Return the length in tokens of the longest request that vLLM admits with a number of blocks; 0 if none."""
    free = blocks - deployment.release.keeps_null_block
    return bisect_right(range(1, _LONGEST), free, key=lambda tokens: blocks_for(layout, tokens))
