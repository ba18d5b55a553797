"""Cautions, and those on hybrid models in some releases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vpatch.plan import Model
from vpatch.plan.deployment import arithmetic_of, release_of
from vpatch.plan.fit import Fit
from vpatch.plan.memory import COUNT_GRAPHS, counts_graphs

# From the first release to before the last.
_TWO_DEFECTS = (0, 20), (0, 26)  # the hit in the prefix cache may be longer than what attention has cached of it
_OVERESTIMATES = (0, 26), (0, 29)  # the estimate for CUDA graphs contains memory that is free again before serving


@dataclass(frozen=True)
class Caution:
    """A known pitfall, with a name for scripts and its source."""

    name: str
    because: str
    source: str = ""


def on_hybrids(model: Model, fit: Fit) -> Iterator[Caution]:
    """Yield the cautions on speculation with prefix caching, and on the estimate for CUDA graphs."""
    deployment, release = fit.deployment, release_of(fit.deployment.vllm).release
    if not model.hybrid:
        return
    both = deployment.speculative_tokens and deployment.enable_prefix_caching
    if both and _TWO_DEFECTS[0] <= release < _TWO_DEFECTS[1]:
        yield Caution(
            "hybrid-speculation",
            "speculative decoding with prefix caching on a hybrid model needs both hybrid-mtp-counts and"
            " hybrid-mtp-prefix, up to vLLM 0.25.1: they fix different causes of wrong tokens, and a test with one of"
            " them says nothing about the other",
            "vllm-project/vllm#53919, #47861",
        )
    estimated = counts_graphs(deployment) and not deployment.enforce_eager and not fit.memory.kv_cache.exact
    if estimated and _OVERESTIMATES[0] <= release < _OVERESTIMATES[1]:
        yield _overestimate(fit)


def _overestimate(fit: Fit) -> Caution:
    deployment = fit.deployment
    batch = "a smaller --max-num-batched-tokens"
    if deployment.enable_prefix_caching and arithmetic_of(deployment.vllm).batch_holds_block:
        batch += f" (at least {fit.layout.block_size:,}, the tokens of a block)"
    return Caution(
        "cudagraph-estimate",
        "on hybrid models, vLLM 0.26 to 0.28 sets too much memory aside for CUDA graphs, which makes the KV cache 18 to"
        f" 24 % smaller: give --kv-cache-memory-bytes, or set {COUNT_GRAPHS}=0 and lower --gpu-memory-utilization by"
        f" 0.02 to 0.03, or give {batch}",
        "vllm-project/vllm#50780, #45178, #50848",
    )
