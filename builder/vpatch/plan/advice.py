"""What would fit, by asking of many deployments whether they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from vpatch.errors import Failure
from vpatch.plan.arithmetic import TURBOQUANT, arithmetic_of
from vpatch.plan.estimates import CONTEXT
from vpatch.plan.fit import fit
from vpatch.plan.gpus import GPUS
from vpatch.plan.model import Deployment, Model, Weights

SEQUENCES = 1024
"""More requests at once than this are not looked for: vLLM's largest default."""


@dataclass(frozen=True)
class Advice:
    """What the same model and GPUs would bear, all else as it is, most likely; None: nothing does.

    `max_model_len` is the longest request, `max_num_seqs` the most requests in a batch that leave room for one of full
    length, `gpu_memory_utilization` the least share that serves `requests` of full length at once.
    """

    max_model_len: int | None
    max_num_seqs: int | None
    gpu_memory_utilization: float | None
    requests: int = 1


def advise(model: Model, weights: Weights, deployment: Deployment, requests: int = 1) -> Advice:
    """Look for the bounds of a deployment; `requests` of full length at once are to be served."""

    def serves(changed: Deployment) -> bool:
        found = fit(model, weights, changed)
        return found.fits and found.likely.concurrency >= requests

    length = fit(model, weights, deployment).longest
    sequences = most_requests(model, weights, deployment, SEQUENCES)
    share = None
    if deployment.kv_cache_memory_bytes is None:
        free = ceil(1000 * CONTEXT.size.least / deployment.gpu.memory)  # at its most, the share is what is free
        thousandths = _last(lambda n: serves(replace(deployment, gpu_memory_utilization=(1000 - n) / 1000)), free, 990)
        share = None if thousandths is None else (1000 - thousandths) / 1000
    return Advice(min(length, model.max_position_embeddings) or None, sequences, share, requests)


def most_requests(model: Model, weights: Weights, deployment: Deployment, most: int) -> int | None:
    """Give how many requests a batch may have, `most` at most."""
    return _last(lambda n: fit(model, weights, replace(deployment, max_num_seqs=n)).fits, 1, most)


def remedies(model: Model, weights: Weights, deployment: Deployment) -> Iterator[str]:
    """Say what would make a deployment fit that does not, one change at a time."""
    dtypes = ("fp8", *TURBOQUANT[:2])
    changes: list[tuple[str, Deployment]] = []
    if length := min(fit(model, weights, deployment).longest, model.max_position_embeddings):
        changes.append((f"--max-model-len {length}", replace(deployment, max_model_len=length)))
    if requests := most_requests(model, weights, deployment, deployment.max_num_seqs):
        changes.append((f"--max-num-seqs {requests}", replace(deployment, max_num_seqs=requests)))
    changes += [
        (f"--max-num-batched-tokens {tokens}", replace(deployment, max_num_batched_tokens=tokens))
        for tokens in (8192, 2048)
        if tokens < deployment.max_num_batched_tokens
    ]
    changes += [
        (f"--gpu-memory-utilization {share}", replace(deployment, gpu_memory_utilization=share))
        for share in (0.92, 0.95)
        if share > deployment.gpu_memory_utilization and deployment.kv_cache_memory_bytes is None
    ]
    changes += [
        (f"--kv-cache-dtype {dtype}", replace(deployment, kv_cache_dtype=dtype))
        for dtype in dtypes
        if dtype in arithmetic_of(deployment.vllm).kv_cache_dtypes and dtype != deployment.kv_cache_dtype
    ]
    changes += [
        (f"--tensor-parallel-size {ranks}", replace(deployment, tensor_parallel_size=ranks))
        for ranks in (2, 4, 8)
        if ranks > deployment.tensor_parallel_size
    ]
    changes += [
        (f"--gpu '{gpu.name}'", replace(deployment, gpu=gpu)) for gpu in GPUS if gpu.memory > deployment.gpu.memory
    ]
    told: set[str] = set()
    for words, changed in changes:
        option = words.split()[0]
        if option not in told and _does(model, weights, changed):
            told.add(option)  # the least change of its kind is enough
            yield words


def _does(model: Model, weights: Weights, deployment: Deployment) -> bool:
    try:
        return fit(model, weights, deployment).fits
    except Failure:
        return False


def _last(holds: Callable[[int], bool], first: int, last: int) -> int | None:
    """Give the last number for which something holds that holds for all before it; None if for none."""
    if not holds(first):
        return None
    while first < last:
        middle = (first + last + 1) // 2
        first, last = (middle, last) if holds(middle) else (first, middle - 1)
    return first
