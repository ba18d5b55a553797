"""What keeps a deployment from starting, or from serving as many requests as it should."""

from __future__ import annotations

from collections.abc import Iterator

from vpatch.errors import Code, Problem
from vpatch.plan import ATTENTIVE, GIB, Model, Weights
from vpatch.plan.deployment import Deployment, arithmetic_of, lengths
from vpatch.plan.division import stages_of
from vpatch.plan.fit import Fit, remedies
from vpatch.plan.kv_cache import keeps_every_state
from vpatch.plan.kv_types import unserved
from vpatch.plan.memory import CONTEXT

_REFUSES = "vLLM refuses to start"


def refusals(model: Model, weights: Weights, fit: Fit, requests: int) -> Iterator[Problem]:
    """Yield the problems that keep a deployment from starting, or from serving so many full-length requests at once."""
    deployment = fit.deployment
    for what in model.unknown:
        yield unknown(model, what)
    _, longest = lengths(model, deployment.vllm)
    if deployment.max_model_len > longest:
        cause = f"{deployment.max_model_len:,} tokens, of {longest:,} that the model was made for"
        yield Problem("too long for the model", model.name, cause)
    if deployment.speculative_tokens and (model.undrafted or not model.draft_layers) and not model.unknown:
        what = "is loaded without its" if model.undrafted else "has no"
        cause = f"{model.architecture} {what} layers of multi-token prediction"
        yield Problem(_REFUSES, f"--speculative {deployment.speculative_tokens}", cause)
    for option, cause in (*_layout_refusals(model, deployment), *unserved(model, deployment)):
        yield Problem(_REFUSES, f"{option}, vLLM {deployment.vllm}", cause)
    if block_exceeds_batch(model, fit) and deployment.enable_prefix_caching:
        block = f"with prefix caching a batch holds a block, which is {fit.layout.block_size:,} tokens"
        cause = f"{block}: {least_batch(fit):,}, which leaves room for decodes, or --no-enable-prefix-caching"
        yield Problem(_REFUSES, f"--max-num-batched-tokens {deployment.max_num_batched_tokens}", cause)
    if not fit.share_is_free:
        cause = f"that share of the card is not free: a process takes {CONTEXT.size.least / GIB:.1f} GiB before it asks"
        yield Problem(_REFUSES, f"--gpu-memory-utilization {deployment.gpu_memory_utilization:g}", cause)
    elif not fit.fits:
        yield _does_not_fit(model, weights, fit)
    elif fit.likely.concurrency < requests:
        cause = f"{fit.likely.concurrency:.2f} of {deployment.max_model_len:,} tokens at once"
        yield Problem("does not serve as many", f"--requests {requests}", cause)


def unknown(model: Model, what: str) -> Problem:
    """Return the problem that plan lacks a fact, not memory."""
    return Problem("cannot know", model.name, what, code=Code.CANNOT_KNOW)


def _layout_refusals(model: Model, deployment: Deployment) -> Iterator[tuple[str, str]]:
    # `tests/plan/test_agreement.py` draws cases of each rule for the releases' own code.
    vllm, stages = deployment.vllm.release, deployment.pipeline_parallel_size
    pipeline = f"--pipeline-parallel-size {stages}"
    if vllm < (0, 30) and stages > 1 and deployment.speculative_tokens:
        yield pipeline, "layers of multi-token prediction cannot be on a stage"
    parts = [model.layers[stage.start : stage.stop] for stage in stages_of(len(model.layers), stages)]
    if vllm >= (0, 20) and model.hybrid and any(set(ATTENTIVE).isdisjoint(part) for part in parts):
        cause = "a stage would have no attention layer"
        yield pipeline, f"{cause}: refused, or from 0.26 on laid out in a way that is not planned"


def _does_not_fit(model: Model, weights: Weights, fit: Fit) -> Problem:
    deployment, memory, would = fit.deployment, fit.memory, "; ".join(remedies(model, weights, fit.deployment))
    fits = f"would fit: {would}" if would else "nothing that is known would fit"
    if fit.lacks_states:
        why = f"CUDA graphs want a block for each of {fit.states:,} requests, there are {fit.likely.blocks:,}"
        return Problem(_REFUSES, f"--max-num-seqs {deployment.max_num_seqs}", f"{why}; {fits}")
    have, need, share = (size / GIB for size in (memory.kv_cache.likely, fit.request, memory.requested))
    missing = need - have
    if fit.overflows:
        missing = -memory.left.likely / GIB
        why = f"a KV cache of {have:.2f} GiB, as asked for, and what comes before it are more than the card has"
    elif have <= 0:
        why = f"what comes before the KV cache takes {-have:.2f} GiB more than vLLM's share of {share:.2f}"
    else:
        why = f"a request of {deployment.max_model_len:,} tokens takes {need:.2f} GiB, {have:.2f} are there"
    cause = f"{missing:.2f} GiB are missing on a GPU: {why}; {fits}"
    return Problem("does not fit", f"{deployment.gpu.name}, {memory.total / GIB:.2f} GiB", cause)


def block_exceeds_batch(model: Model, fit: Fit) -> bool:
    """Whether vLLM refuses prefix caching: `VllmConfig.validate_block_size`, up to 0.26."""
    deployment = fit.deployment
    larger = fit.layout.block_size > deployment.max_num_batched_tokens
    holds = arithmetic_of(deployment.vllm).batch_holds_block and not keeps_every_state(model, deployment)
    return model.hybrid and larger and holds


def least_batch(fit: Fit) -> int:
    """Return the tokens of a batch in which a prompt goes on by a block while all requests decode."""
    return fit.layout.block_size + fit.deployment.max_num_seqs * (1 + fit.deployment.speculative_tokens)


def starves_prompts(model: Model, fit: Fit) -> bool:
    """Whether a long prompt may get no tokens for as long as other requests decode.

    With prefix caching, a chunk of a hybrid model's prompt ends where a block does. If what the decodes of a step leave
    of its batch is less than a block, the chunk is cut to nothing: `Scheduler._mamba_block_aligned_split`, 0.18 to
    0.33. A batch that cannot hold a block at all is refused up to 0.26, and later prompts go on by less than a block.
    """
    deployment = fit.deployment
    aligned = model.hybrid and deployment.enable_prefix_caching and not keeps_every_state(model, deployment)
    return aligned and fit.layout.block_size <= deployment.max_num_batched_tokens < least_batch(fit)
