"""Whether a deployment fits its GPUs, the bounds of its options, and changes that would make it fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from vpatch.errors import Failure
from vpatch.plan import Model
from vpatch.plan.defaults import GPUS, defaults, lengths
from vpatch.plan.deployment import TURBOQUANT, Deployment, Gpu
from vpatch.plan.kv_cache import Capacity, Layout, blocks_for, capacity, keeps_every_state, layout, longest
from vpatch.plan.memory import CONTEXT, Memory, account
from vpatch.plan.refusals import unserved

# Smaller types of KV cache that advice considers: the less a type takes, the more it may cost in quality.
SMALLER = ("fp8", "int8_per_token_head", "turboquant_k8v4", "nvfp4", "turboquant_4bit_nc", "int4_per_token_head")
TILES = "turboquant-tiles"  # the overlay that memory depends on
SEQUENCES = 1024  # the most requests at once that advice considers: vLLM's largest default


@dataclass(frozen=True)
class Fit:
    """A model on its GPUs. `memory` is of the GPU with the least room, `longest` the longest request."""

    model: Model
    deployment: Deployment
    layout: Layout
    memory: Memory
    likely: Capacity
    least: Capacity
    most: Capacity
    longest: int

    @property
    def needed(self) -> int:
        """Bytes of KV cache on a GPU that vLLM needs to start: for a request of full length, and for its graphs."""
        return max(self.request, self._bytes(self.states))

    @property
    def request(self) -> int:
        """Bytes of KV cache on a GPU for one request of full length, as vLLM asks for it when it starts."""
        spare = self.deployment.release.keeps_null_block
        return self._bytes(blocks_for(self.layout, self.deployment.max_model_len) + spare)

    @property
    def states(self) -> int:
        """Blocks for the states of a batch, one per request: `CompilationConfig.resolve_cudagraph_mode_and_sizes`."""
        wanted = self.deployment.release.block_per_request and not self.deployment.enforce_eager
        return self.deployment.max_num_seqs if wanted and self.layout.state_bytes else 0

    @property
    def lacks_states(self) -> bool:
        """Whether these blocks are the only thing that it lacks."""
        enough = self.share_is_free and not self.overflows and self.longest >= self.deployment.max_model_len
        return enough and not self.fits

    @property
    def fits(self) -> bool:
        """Whether vLLM is likely to start."""
        return self._bytes(self.likely.blocks) >= self.needed and not self.overflows and self.share_is_free

    @property
    def share_is_free(self) -> bool:
        """Whether vLLM's share is free when it begins, which it checks first. Source: `request_memory`."""
        return self.memory.requested <= self.memory.total - CONTEXT.size.least

    @property
    def overflows(self) -> bool:
        """Whether a KV cache of a given size exceeds the rest of the card: nothing else bounds it."""
        return self.memory.kv_cache.exact and self.memory.left.likely < 0

    @property
    def surely(self) -> bool:
        """Whether it fits even in the worst case of the estimates."""
        room = not self.memory.kv_cache.exact or self.memory.left.least >= 0
        return self._bytes(self.least.blocks) >= self.needed and room

    @property
    def outgrows(self) -> bool:
        """Whether what vLLM does not count may, at worst, be more than the card has beside vLLM's share."""
        uncounted = any(not item.counted and item is not CONTEXT for item in self.memory.items)
        return uncounted and self.memory.left.least < 0

    @property
    def least_batch(self) -> int:
        """The tokens of a batch in which a prompt goes on by a block while all requests decode."""
        return self.layout.block_size + self.deployment.max_num_seqs * (1 + self.deployment.speculative_tokens)

    @property
    def block_exceeds_batch(self) -> bool:
        """Whether vLLM refuses prefix caching: `VllmConfig.validate_block_size`, up to 0.26."""
        larger = self.layout.block_size > self.deployment.max_num_batched_tokens
        holds = self.deployment.release.batch_holds_block and not keeps_every_state(self.model, self.deployment)
        return self.model.hybrid and larger and holds

    @property
    def starves_prompts(self) -> bool:
        """Whether a long prompt may get no tokens for as long as other requests decode.

        With prefix caching, a chunk of a hybrid model's prompt ends where a block does. If what the decodes of a step
        leave of its batch is less than a block, the chunk is cut to nothing: `Scheduler._mamba_block_aligned_split`,
        0.18 to 0.33. A batch that cannot hold a block at all is refused up to 0.26, and later prompts go on by less
        than a block.
        """
        aligned = self.deployment.enable_prefix_caching and not keeps_every_state(self.model, self.deployment)
        batch = self.deployment.max_num_batched_tokens
        return self.model.hybrid and aligned and self.layout.block_size <= batch < self.least_batch

    def _bytes(self, blocks: int) -> int:
        return blocks * max(self.layout.bytes_per_block)


def fit(model: Model, deployment: Deployment) -> Fit:
    """Compute how a model whose weights are known fits its GPUs; raise `Failure` as `layout` does."""
    laid_out = layout(model, deployment)
    stages = account(model, deployment, laid_out.block_size)
    likely, least, most = (
        capacity(laid_out, deployment, [getattr(stage.kv_cache, bound) for stage in stages])
        for bound in ("likely", "least", "most")
    )
    with_blocks = zip(stages, laid_out.bytes_per_block, strict=True)
    tightest, _ = min(with_blocks, key=lambda pair: (pair[0].kv_cache.likely / pair[1], pair[0].left.likely))
    return Fit(model, deployment, laid_out, tightest, likely, least, most, longest(laid_out, deployment, likely.blocks))


@dataclass(frozen=True)
class Advice:
    """The most likely bounds of a deployment if one option changes; None where nothing fits."""

    max_model_len: int | None
    max_num_seqs: int | None  # that leave room for a request of full length
    gpu_memory_utilization: float | None  # that serves `requests` of full length at once
    requests: int = 1


def advise(found: Fit, requests: int = 1) -> Advice:
    """Find the bounds of a deployment that is to serve `requests` of full length at once."""
    model, deployment = found.model, found.deployment

    def serves(left: int) -> bool:
        changed = fit(model, replace(deployment, gpu_memory_utilization=(1000 - left) / 1000))
        return changed.fits and changed.likely.concurrency >= requests

    share = None
    if deployment.kv_cache_memory_bytes is None:
        free = ceil(1000 * CONTEXT.size.least / deployment.gpu.memory)  # the share can be no more than what is free
        left = _last(serves, free, 990)
        share = None if left is None else (1000 - left) / 1000
    length = min(found.longest, lengths(model, deployment.release)[1])
    return Advice(length or None, _most_requests(found, SEQUENCES), share, requests)


def remedies(found: Fit) -> Iterator[str]:
    """Yield changes that would each make a deployment fit its GPUs, of each kind one, first the free ones.

    It is the smallest that does so at the worst of the bounds, too, else at what is likely. A type of KV cache is the
    largest that is likely to fit, since less of it costs quality. Where no change does it alone, fewer and shorter
    requests may.
    """
    model, deployment = found.model, found.deployment
    shares = (0.92, 0.95, 0.97) if deployment.kv_cache_memory_bytes is None else ()
    length = min(found.longest, lengths(model, deployment.release)[1])
    values: dict[str, list[Any]] = {
        "language_model_only": [model.tower is not None and not deployment.language_model_only],
        "max_num_seqs": sorted(filter(None, [_most_requests(found, deployment.max_num_seqs), *_fewer(found)]))[::-1],
        "max_num_batched_tokens": _smaller_batches(found),
        "max_model_len": [length, *_shorter(found)],
        "kv_cache_dtype": [dtype for dtype in SMALLER if dtype != deployment.kv_cache_dtype],
        "tiles": [deployment.kv_cache_dtype in TURBOQUANT and not deployment.tiles],
        "gpu_memory_utilization": [share for share in shares if share > deployment.gpu_memory_utilization],
    }
    yield from [*_first_of_each(found, values, _is_sure, _fits)] or _fewer_and_shorter(found)


def _fewer_and_shorter(found: Fit) -> Iterator[str]:
    """Yield the most requests, and how long they can be, that fit together."""
    model, deployment = found.model, found.deployment
    fewer = [fit(model, replace(deployment, max_num_seqs=count)) for count in _fewer(found)]
    pairs = [
        fit(model, replace(one.deployment, max_model_len=length))
        for one in fewer
        for length in (*_shorter(one), min(one.longest, lengths(model, deployment.release)[1]))
        if length
    ]
    for one in [one for holds in (_is_sure, _fits) for one in pairs if holds(one)][:1]:
        yield f"--max-num-seqs {one.deployment.max_num_seqs} --max-model-len {one.deployment.max_model_len}"


def hardware(found: Fit) -> Iterator[str]:
    """Yield the fewest GPUs, and the smallest GPU, on which a deployment would fit."""
    deployment = found.deployment
    values: dict[str, list[Any]] = {
        "tensor_parallel_size": [ranks for ranks in (2, 4, 8) if ranks > deployment.tensor_parallel_size],
        "gpu": [gpu for gpu in GPUS if gpu.memory > deployment.gpu.memory],
    }
    for option in _first_of_each(found, values, _fits):
        card = next((gpu for gpu in GPUS if option == _as_option("gpu", gpu)), deployment.gpu)
        usual, there = (
            defaults(found.model, deployment.release, one)["max_num_seqs"] for one in (deployment.gpu, card)
        )
        # On a larger GPU, vLLM takes more requests by default.
        yield option if usual == there else f"{option} --max-num-seqs {deployment.max_num_seqs}"


def assurances(found: Fit) -> Iterator[str]:
    """Yield changes that would each make a deployment fit at the worst of its bounds, the smallest of each kind."""
    deployment = found.deployment
    bounded = deployment.kv_cache_memory_bytes is not None or deployment.desktop  # which has a caution of its own
    shares = [] if bounded else [round(deployment.gpu_memory_utilization + step / 100, 3) for step in range(1, 16)]
    values: dict[str, list[Any]] = {
        "gpu_memory_utilization": [share for share in shares if share < 1],
        "max_model_len": _shorter(found),
        "max_num_seqs": _fewer(found),
    }
    return _first_of_each(found, values, _is_sure)


def _fits(found: Fit) -> bool:
    return found.fits


def _is_sure(found: Fit) -> bool:
    free = found.memory.total - CONTEXT.size.most
    return found.fits and found.surely and not found.outgrows and found.memory.requested <= free


def _fewer(found: Fit) -> list[int]:
    return [count for count in (128, 64, 32, 16, 8, 4) if count < found.deployment.max_num_seqs]


def _shorter(found: Fit) -> list[int]:
    """Return the longest request that fits at the worst of the bounds, if that is shorter than what was asked for."""
    length = longest(found.layout, found.deployment, found.least.blocks)
    return [length // 1024 * 1024 or length] if length < found.deployment.max_model_len else []


def _smaller_batches(found: Fit) -> list[int]:
    """Return smaller batches, the largest first, of which none is too small for a block and the decodes beside it."""
    aligned = found.model.hybrid and found.deployment.enable_prefix_caching
    least = found.least_batch if aligned else 2048
    return [tokens for tokens in (8192, max(least, 2048)) if least <= tokens < found.deployment.max_num_batched_tokens]


def _first_of_each(found: Fit, values: Mapping[str, list[Any]], *holds: Callable[[Fit], bool]) -> Iterator[str]:
    """Yield as an option the first value of each field of the deployment with which the first predicate holds.

    If it holds with none, the next predicate decides. Of a type of KV cache, only the last one does.
    """
    model, deployment = found.model, found.deployment
    for name, candidates in values.items():
        fits: dict[Any, Fit] = {}
        for value in filter(None, candidates):
            changed = replace(deployment, **{name: value})
            with suppress(Failure):  # the model cannot be divided so, or there is no such KV cache
                if not any(unserved(model, changed)):
                    fits[value] = fit(model, changed)
        ways = holds[-1:] if name == "kv_cache_dtype" else holds
        first = next((value for way in ways for value, changed in fits.items() if way(changed)), None)
        if first is not None:
            yield _as_option(name, first)


def _as_option(name: str, value: Any) -> str:
    if name == "tiles":
        return f"--with {TILES}"
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return option
    return f"{option} '{value.name}'" if isinstance(value, Gpu) else f"{option} {value}"


def _most_requests(found: Fit, most: int) -> int | None:
    return _last(lambda count: fit(found.model, replace(found.deployment, max_num_seqs=count)).fits, 1, most)


def _last(holds: Callable[[int], bool], first: int, last: int) -> int | None:
    """Return the last number for which a predicate holds that holds for all before it; None if for none."""
    if not holds(first):  # as a rule where a deployment does not fit, which is then one try, not ten
        return None
    return first + bisect_left(range(first + 1, last + 1), 1, key=lambda n: not holds(n))
