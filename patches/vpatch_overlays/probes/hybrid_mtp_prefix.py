"""Prefix-cache hits of a hybrid model with speculative decoding: none reaches beyond the cached attention pages."""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from vpatch_overlays.probes.bare import expect, settle

BLOCK = 16
"""Tokens of a block, of attention and of Mamba layers alike."""
BLOCKS = 8
"""Full blocks of the prompt."""

Cached = Sequence[Iterable[int]]
"""For each group of layers, the indices of the prompt's blocks that are in the prefix cache."""


def main() -> None:
    """Look up a prompt of which attention has three blocks, and Mamba the state at the end of the third."""
    settle()
    blocks, tokens = hit(groups(), [range(3), [2]])
    what = "tokens of a prefix-cache hit, beyond its attention pages"
    expect(what, 0, max(0, tokens - BLOCK * blocks[0]))
    blocks, tokens = hit(groups(), [range(3), [1, 2]])
    expect("tokens of a prefix-cache hit with a usable state", (2, 2, 2 * BLOCK), (*blocks, tokens))


def groups(attention: int = 1, states: int = 1) -> list[Any]:
    """Return KV cache specs as a hybrid model has them: some of full attention, each of another size, then of Mamba."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

    found: list[Any] = [
        FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64 * (number + 1), dtype=torch.bfloat16)
        for number in range(attention)
    ]
    for number in range(states):
        shapes, dtypes = ((number + 1, 8),), (torch.float32,)
        found.append(MambaSpec(block_size=BLOCK, shapes=shapes, dtypes=dtypes, mamba_cache_mode="align"))
    return found


def hit(specs: Sequence[Any], cached: Cached, *, speculates: bool = True) -> tuple[list[int], int]:
    """Look up a prompt in the prefix cache.

    Args:
        specs: the spec of each group of layers.
        cached: the blocks that are cached, for each group.
        speculates: whether a draft model needs the last hidden state of the prefix.

    Returns:
        The number of blocks that each group brings to the hit, and the length of the hit in tokens.
    """
    from vllm.v1.core.kv_cache_coordinator import get_kv_cache_coordinator
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    made = [KVCacheGroupSpec([f"layer {number}"], spec) for number, spec in enumerate(specs)]
    config = KVCacheConfig(num_blocks=len(specs) * BLOCKS + 1, kv_cache_tensors=[], kv_cache_groups=made)
    options = {
        "kv_cache_config": config, "max_model_len": BLOCK * BLOCKS, "max_num_batched_tokens": BLOCK * BLOCKS,
        "max_in_flight_tokens": BLOCK * BLOCKS, "use_eagle": speculates, "enable_caching": True,
        "enable_kv_cache_events": False, "dcp_world_size": 1, "pcp_world_size": 1, "scheduler_block_size": BLOCK,
        "hash_block_size": BLOCK,
    }  # fmt: skip
    taken = inspect.signature(get_kv_cache_coordinator).parameters
    coordinator = get_kv_cache_coordinator(**{name: value for name, value in options.items() if name in taken})
    hashes = [b"%032d" % number for number in range(BLOCKS)]
    pool, page = coordinator.block_pool, 1
    for group, indices in enumerate(cached):
        for index in indices:
            key = make_block_hash_with_group_id(hashes[index], group)
            pool.cached_block_hash_to_block.insert(key, pool.blocks[page])
            page += 1
    blocks, tokens, *_ = coordinator.find_longest_cache_hit(hashes, BLOCK * BLOCKS - 1)
    return [len(some) for some in blocks], tokens


if __name__ == "__main__":
    main()
