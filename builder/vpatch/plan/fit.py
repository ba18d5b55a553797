"""Whether a deployment fits its GPUs, and what of it would."""

from __future__ import annotations

from dataclasses import dataclass

from vpatch.plan.arithmetic import arithmetic_of
from vpatch.plan.estimates import CONTEXT
from vpatch.plan.kv_cache import blocks_for, capacity, layout, longest
from vpatch.plan.memory import Memory, account
from vpatch.plan.model import Capacity, Deployment, Layout, Model, Weights


@dataclass(frozen=True)
class Fit:
    """A deployment on its GPUs: most likely, at least and at most. `memory` is of the GPU with least room."""

    deployment: Deployment
    layout: Layout
    memory: Memory
    likely: Capacity
    least: Capacity
    most: Capacity
    longest: int

    @property
    def needed(self) -> int:
        """Bytes of a GPU that vLLM wants of the KV cache to start: for a request of full length, and for its graphs."""
        return max(self.request, self._bytes(self.states))

    @property
    def request(self) -> int:
        """Bytes of a GPU that the KV cache of one request of full length takes, as vLLM asks for it when it starts."""
        spare = arithmetic_of(self.deployment.vllm).keeps_null_block
        return self._bytes(blocks_for(self.layout, self.deployment.max_model_len) + spare)

    @property
    def states(self) -> int:
        """Blocks that it wants for the states of a batch, one for each request.

        Source: `CompilationConfig.resolve_cudagraph_mode_and_sizes`.
        """
        wanted = arithmetic_of(self.deployment.vllm).block_per_request and not self.deployment.enforce_eager
        return self.deployment.max_num_seqs if wanted and self.layout.state_bytes else 0

    @property
    def lacks_states(self) -> bool:
        """Whether it is for these alone that it does not start."""
        enough = self.share_is_free and not self.overflows and self.longest >= self.deployment.max_model_len
        return enough and not self.fits

    @property
    def fits(self) -> bool:
        """Whether vLLM is likely to start."""
        return self._bytes(self.likely.blocks) >= self.needed and not self.overflows and self.share_is_free

    @property
    def share_is_free(self) -> bool:
        """Whether vLLM's share is free when it begins: it asks for that first. Source: `request_memory`."""
        return self.memory.requested <= self.memory.total - CONTEXT.size.least

    @property
    def overflows(self) -> bool:
        """Whether a KV cache of a given size is more than the rest leaves of the card: nothing else bounds it."""
        return self.memory.kv_cache.exact and self.memory.left.likely < 0

    @property
    def surely(self) -> bool:
        """Whether it does so at the worst that is estimated."""
        room = not self.memory.kv_cache.exact or self.memory.left.least >= 0
        return self._bytes(self.least.blocks) >= self.needed and room

    def _bytes(self, blocks: int) -> int:
        return blocks * max(self.layout.bytes_per_block)


def fit(model: Model, weights: Weights, deployment: Deployment) -> Fit:
    """Compute it.

    Raises:
        Failure: vLLM has no such KV cache, or the model cannot be divided so.
    """
    laid = layout(model, deployment)
    stages = account(model, weights, deployment)
    likely, least, most = (
        capacity(laid, deployment, [getattr(stage.kv_cache, bound) for stage in stages])
        for bound in ("likely", "least", "most")
    )
    tightest = min(
        zip(stages, laid.bytes_per_block, strict=True),
        key=lambda stage: (stage[0].kv_cache.likely / stage[1], stage[0].left.likely),
    )
    return Fit(deployment, laid, tightest[0], likely, least, most, longest(laid, deployment, likely.blocks))
