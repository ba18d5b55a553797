"""A hybrid model whose smallest block is not that of its states: where chunks end, and which column has the state."""

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from vpatch_overlays.probes.bare import expect, settle
from vpatch_overlays.probes.hybrid_align_progress import chunks, scheduler

BLOCK, SMALLEST = 7168, 64
STATES = "vllm.v1.worker.gpu.model_states.mamba_hybrid"


def main() -> None:
    """Cut a prompt of four blocks into chunks, and look up the state of a request with ten blocks in the cache."""
    settle()
    held = scheduler(2 * BLOCK, block=BLOCK)
    held.cache_config.block_size = held.hash_block_size = SMALLEST
    ends = [*chunks(held, 4 * BLOCK + 100, [BLOCK + 500] * 3)]
    expect("ends of chunks, with blocks of 7168 tokens for states", [BLOCK, 2 * BLOCK, 3 * BLOCK], ends)
    if find_spec(STATES) and (found := column(10 * BLOCK)) is not None:
        expect("column of the block table that has the state of ten blocks", 9, found)


def column(computed: int, block: int = BLOCK, smallest: int = SMALLEST) -> int | None:
    """Return where the second model runner looks for a request's state; None if it keeps none for prefix caching.

    Args:
        computed: the request's tokens in the prefix cache.
        block: the tokens of a block of states.
        smallest: the tokens of the smallest block.
    """
    import torch
    from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState

    if "add_request" not in vars(MambaHybridModelState):
        return None

    class Alone(MambaHybridModelState):  # type: ignore[misc]
        def __init__(self) -> None:
            self._align_mode = True
            self._mamba_state_idx_gpu = torch.zeros(1, dtype=torch.int32)
            self.num_accepted_tokens_gpu = torch.zeros(1, dtype=torch.int32)
            self.cache_config = SimpleNamespace(block_size=smallest, mamba_block_size=block)

    parent: Any = MambaHybridModelState.__mro__[1]
    before = parent.add_request
    parent.add_request = lambda *_: None  # what it does for prompts with images
    try:
        state = Alone()
        state.add_request(0, SimpleNamespace(num_computed_tokens=computed))
    finally:
        parent.add_request = before
    return int(state._mamba_state_idx_gpu[0])


if __name__ == "__main__":
    main()
