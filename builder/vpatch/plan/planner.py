"""A plan: everything that `vpatch plan` says of a model and a deployment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vpatch.core.overlay import Catalogued
from vpatch.errors import Failure, Problem
from vpatch.plan.advice import Advice, advise, remedies
from vpatch.plan.cautions import Caution, block_exceeds_batch, cautions
from vpatch.plan.estimates import CONTEXT
from vpatch.plan.fit import Fit, fit
from vpatch.plan.model import GIB, Deployment, Model
from vpatch.plan.needs import Needed, needs
from vpatch.plan.refusals import refusals


@dataclass(frozen=True)
class Plan:
    """What a deployment needs, takes and holds. With `problems` it does not do what was asked."""

    model: Model
    fit: Fit
    needs: tuple[Needed, ...]
    advice: Advice
    cautions: tuple[Caution, ...]
    problems: tuple[Problem, ...]

    @property
    def deployment(self) -> Deployment:
        """What was planned."""
        return self.fit.deployment

    @property
    def overlays(self) -> tuple[str, ...]:
        """The ids of the overlays that it needs."""
        return tuple(item.id for item in self.needs if item.needed)


def plan(
    model: Model,
    deployment: Deployment,
    installed: Sequence[Catalogued],
    *,
    requests: int = 1,
    slow_link: bool = False,
) -> Plan:
    """Plan a deployment of a model, by the overlays that are installed.

    Raises:
        Failure: vLLM has no such KV cache, the model cannot be divided so, or the size of its weights is not known.
    """
    if model.weights is None:
        unknown = (Problem("cannot know", model.name, what) for what in model.unknown)
        raise Failure(*unknown, Problem("unknown weights", model.name, "give their size by --weights-gib"))
    if deployment.kv_cache_dtype == "auto" and model.kv_cache_dtype:
        deployment = replace(deployment, kv_cache_dtype=model.kv_cache_dtype)
    found = fit(model, model.weights, deployment)
    if deployment.longest and found.longest:
        length = min(found.longest, deployment.max_model_len)
        deployment = replace(deployment, max_model_len=length)
        found = fit(model, model.weights, deployment)
    needed = needs(model, deployment, installed)
    uncovered = (Problem("vLLM cannot serve it", model.architecture, item.because) for item in needed if item.uncovered)
    return Plan(
        model=model,
        fit=found,
        needs=needed,
        advice=advise(model, model.weights, deployment, requests),
        cautions=cautions(model, found, slow_link=slow_link),
        problems=(*uncovered, *_problems(model, found, requests)),
    )


def _problems(model: Model, found: Fit, requests: int) -> Iterator[Problem]:
    assert model.weights  # noqa: S101 - for mypy; `plan` asked
    deployment, layout = found.deployment, found.layout
    for what in model.unknown:
        yield Problem("cannot know", model.name, what)
    if deployment.max_model_len > model.max_position_embeddings:
        cause = f"{deployment.max_model_len:,} tokens, of {model.max_position_embeddings:,} that the model was made for"
        yield Problem("too long for the model", model.name, cause)
    if deployment.speculative_tokens and not model.draft_layers and not model.unknown:
        cause = f"{model.architecture} has no layers of multi-token prediction"
        yield Problem("vLLM refuses to start", f"--speculative {deployment.speculative_tokens}", cause)
    yield from refusals(model, deployment)
    if block_exceeds_batch(model, found) and deployment.enable_prefix_caching:
        yield Problem(
            "vLLM refuses to start",
            f"--max-num-batched-tokens {deployment.max_num_batched_tokens}",
            f"with prefix caching a batch holds a block, which is {layout.block_size:,} tokens: at least that, or"
            " --no-enable-prefix-caching",
        )
    if not found.share_is_free:
        cause = f"that share of the card is not free: a process takes {CONTEXT.size.least / GIB:.1f} GiB before it asks"
        where = f"--gpu-memory-utilization {deployment.gpu_memory_utilization:g}"
        yield Problem("vLLM refuses to start", where, cause)
        return
    if found.fits:
        if found.likely.concurrency < requests:
            cause = f"{found.likely.concurrency:.2f} of {deployment.max_model_len:,} tokens at once"
            yield Problem("does not serve as many", f"--requests {requests}", cause)
        return
    would = "; ".join(remedies(model, model.weights, deployment))
    fits = f"would fit: {would}" if would else "nothing that is known would fit"
    if found.lacks_states:
        why = f"CUDA graphs want a block for each of {found.states:,} requests, there are {found.likely.blocks:,}"
        yield Problem("vLLM refuses to start", f"--max-num-seqs {deployment.max_num_seqs}", f"{why}; {fits}")
        return
    have, need, share = (size / GIB for size in (found.memory.kv_cache.likely, found.request, found.memory.requested))
    missing = f"{need - have:.2f} GiB are missing on a GPU"
    if found.overflows:
        missing = f"{-found.memory.left.likely / GIB:.2f} GiB are missing on a GPU"
        why = f"a KV cache of {have:.2f} GiB, as asked for, and what comes before it are more than the card has"
    elif have <= 0:
        why = f"what comes before the KV cache takes {-have:.2f} GiB more than vLLM's share of {share:.2f}"
    else:
        why = f"a request of {deployment.max_model_len:,} tokens takes {need:.2f} GiB, {have:.2f} are there"
    where = f"{deployment.gpu.name}, {found.memory.total / GIB:.2f} GiB"
    yield Problem("does not fit", where, f"{missing}: {why}; {fits}")
