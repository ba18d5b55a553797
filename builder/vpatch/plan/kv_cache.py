"""The KV cache as vLLM lays it out: block size, groups of layers, blocks, and what they hold.

Source: `Platform._align_hybrid_block_size`, and `get_kv_cache_groups` and `get_kv_cache_config_from_groups` in vLLM's
`v1/core`. All of a model's layers share one pool of blocks, of which every group of layers takes some: those of
attention one for `block_size` tokens, those with a state a fixed number for a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil

from vpatch.errors import Failure, Problem
from vpatch.plan.arithmetic import Arithmetic, arithmetic_of
from vpatch.plan.kv_pages import PRESETS, element_bytes, state_bytes, token_bytes
from vpatch.plan.model import FULL, LINEAR, Attention, Capacity, Deployment, Layout, Model

KERNEL_BLOCK = 16
"""Tokens: vLLM's default block size, and the least that every attention kernel for NVIDIA's GPUs takes."""

BOUNDARY = 2
"""Layers at each end of a dense model that TurboQuant leaves unquantised, at most half of them at each."""


def layout(model: Model, deployment: Deployment) -> Layout:
    """Give the layout of a deployment's KV cache.

    Raises:
        Failure: the release has no such KV cache, or the model cannot be divided among so many GPUs.
    """
    traits = arithmetic_of(deployment.vllm)
    _check(model, deployment, traits)
    attention = _shard(model.attention, deployment.tensor_parallel_size)
    per_token = token_bytes(attention, deployment.kv_cache_dtype, model.dtype)
    drafts = model.draft_layers if deployment.speculative_tokens else 0
    stages = stages_of(len(model.layers), deployment.pipeline_parallel_size)
    if not model.hybrid:
        return _dense(model, deployment, traits, attention, per_token, drafts, stages)

    assert model.linear  # noqa: S101 - for mypy; a hybrid model has some
    state = state_bytes(model.linear, model.dtype, deployment.tensor_parallel_size, deployment.speculative_tokens)
    exports = exports_states(model, deployment)
    kernel_block = 64 if exports else KERNEL_BLOCK
    block_size = kernel_block * ceil(state / (kernel_block * per_token))
    growing = [index for index, kind in enumerate(model.layers) if kind != LINEAR]
    growing += range(len(model.layers), len(model.layers) + drafts)
    fixed = [index for index, kind in enumerate(model.layers) if kind == LINEAR]
    size = _group_size(len(growing), len(fixed))
    groups = [*_split(growing, size), *_split(fixed, size)]
    return Layout(
        block_size=block_size,
        page_bytes=block_size * per_token,
        state_bytes=state,
        groups=tuple(map(len, groups)),
        attention_groups=ceil(len(growing) / size),
        bytes_per_block=tuple(
            block_size * per_token * max(sum(index in stage for index in group) for group in groups)
            for stage in _with_drafts(stages, drafts)
        ),
        state_blocks=1 + deployment.enable_prefix_caching + exports + deployment.speculative_tokens,
    )


def capacity(layout: Layout, deployment: Deployment, budgets: Sequence[int]) -> Capacity:
    """Say what the KV cache holds if the GPUs of each pipeline stage give it `budgets` bytes: the smallest decides."""
    blocks = max(0, min(budget // size for budget, size in zip(budgets, layout.bytes_per_block, strict=True)))
    needed = blocks_for(layout, deployment.max_model_len)
    concurrency = blocks / needed
    return Capacity(
        blocks=blocks,
        blocks_per_request=needed,
        slots=blocks // len(layout.groups) * _least_block(layout, deployment),
        tokens=int(concurrency * deployment.max_model_len),
        concurrency=concurrency,
    )


def _least_block(layout: Layout, deployment: Deployment) -> int:
    """Tokens of the shortest block of any group; without prefix caching, that of a state is as long as a request."""
    if deployment.enable_prefix_caching or len(layout.groups) == layout.attention_groups:
        return layout.block_size
    return min(layout.block_size, deployment.max_model_len)


def blocks_for(layout: Layout, tokens: int) -> int:
    """Give the blocks that one request of `tokens` takes, over all groups."""
    fixed = (len(layout.groups) - layout.attention_groups) * layout.state_blocks
    return layout.attention_groups * ceil(tokens / layout.block_size) + fixed


def longest(layout: Layout, deployment: Deployment, blocks: int) -> int:
    """Give the longest request, in tokens, that vLLM admits with so many blocks; 0 if none."""
    free = blocks - arithmetic_of(deployment.vllm).keeps_null_block - blocks_for(layout, 0)
    return max(0, free // layout.attention_groups * layout.block_size)


def exports_states(model: Model, deployment: Deployment) -> bool:
    """Say whether prefill kernels put out states on the way, as FlashInfer's do on Hopper and Blackwell."""
    if not (arithmetic_of(deployment.vllm).exports_states and deployment.enable_prefix_caching and model.linear):
        return False
    match deployment.gpu.capability:
        case (9, 0):
            return True
        case (10 | 12, _):
            return model.linear.key_head_size == 128
        case _:
            return False


def stages_of(layers: int, stages: int) -> list[range]:
    """Divide layers among pipeline stages as vLLM does: what is left over goes to those before the last.

    Source: `vllm.distributed.utils.get_pp_indices`.
    """
    counts = [layers // stages] * stages
    for stage in range(layers % stages):
        counts[-2 - stage] += 1
    return [range(*pair) for pair in pairwise([0, *accumulate(counts)])]


def skipped_layers(model: Model, deployment: Deployment) -> frozenset[int]:
    """Give the layers that TurboQuant leaves alone: none of a hybrid model's attention, the boundary of a dense one."""
    if deployment.kv_cache_dtype not in PRESETS:
        return frozenset()
    count = len(model.layers)
    if model.hybrid:
        return frozenset(index for index, kind in enumerate(model.layers) if kind == LINEAR)
    edge = min(BOUNDARY, count // 2)
    return frozenset({*range(edge), *range(count - edge, count)})


def _dense(
    model: Model,
    deployment: Deployment,
    traits: Arithmetic,
    attention: Attention,
    per_token: int,
    drafts: int,
    stages: list[range],
) -> Layout:
    """Give the layout where every layer is attention: one group, whose pages need not be equal."""
    skipped = skipped_layers(model, deployment)
    block_size = KERNEL_BLOCK
    unquantised = token_bytes(attention, "auto", model.dtype)
    if skipped and traits.aligns_skipped:
        block_size *= element_bytes("auto", model.dtype)  # against one byte of a packed cache
    return Layout(
        block_size=block_size,
        page_bytes=block_size * per_token,
        state_bytes=0,
        groups=(len(model.layers) + drafts,),
        attention_groups=1,
        bytes_per_block=tuple(
            block_size * sum(unquantised if index in skipped else per_token for index in stage)
            for stage in _with_drafts(stages, drafts)
        ),
    )


def _with_drafts(stages: list[range], drafts: int) -> list[range]:
    """The layers of multi-token prediction come after all others, on the last stage."""
    return [*stages[:-1], range(stages[-1].start, stages[-1].stop + drafts)]


def _shard(attention: Attention, ranks: int) -> Attention:
    """Give what one of `ranks` GPUs has; KV heads that are fewer than GPUs are copied."""
    return Attention(attention.heads // ranks, max(1, attention.kv_heads // ranks), attention.head_size)


def _group_size(growing: int, fixed: int) -> int:
    """Layers in a group: as many as the rarer kind has, unless the other has less than half as many more."""
    least, most = sorted((growing, fixed))
    return most if most < least * 1.5 else least


def _split(layers: list[int], size: int) -> list[list[int]]:
    count = ceil(len(layers) / size)
    return [layers[first::count] for first in range(count)]


def _check(model: Model, deployment: Deployment, traits: Arithmetic) -> None:
    ranks, stages = deployment.tensor_parallel_size, deployment.pipeline_parallel_size
    problems = []
    if deployment.kv_cache_dtype not in traits.kv_cache_dtypes:
        known = ", ".join(traits.kv_cache_dtypes)
        problems.append(
            Problem("no such KV cache", f"{deployment.kv_cache_dtype} on vLLM {deployment.vllm}", f"plan knows {known}")
        )
    divided = {"attention heads": model.attention.heads}
    if model.attention.kv_heads > ranks:
        divided["KV heads"] = model.attention.kv_heads
    elif ranks % model.attention.kv_heads:
        cause = f"{model.attention.kv_heads} KV heads cannot be copied to them evenly"
        problems.append(Problem("cannot divide the model", f"{ranks} GPUs", cause))
    if model.linear:
        divided |= {"key heads": model.linear.key_heads, "value heads": model.linear.value_heads}
    problems += [
        Problem("cannot divide the model", f"{ranks} GPUs", f"its {count} {what} are not divisible by {ranks}")
        for what, count in divided.items()
        if count % ranks
    ]
    if stages > len(model.layers):
        problems.append(Problem("cannot divide the model", f"{stages} stages", f"it has {len(model.layers)} layers"))
    if FULL not in model.layers:
        problems.append(Problem("no attention", model.name, "a KV cache is that of attention layers"))
    if problems:
        raise Failure(*problems)
