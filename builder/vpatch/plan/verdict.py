"""The plan of a deployment and its verdict: whether it fits, the overlays that it needs, and what refuses it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

from vpatch.core.overlay import Catalogued
from vpatch.errors import Code, Failure, Problem
from vpatch.plan import GIB, Model
from vpatch.plan.defaults import lengths
from vpatch.plan.deployment import Deployment, types_of
from vpatch.plan.fit import TILES, Advice, Fit, advise, fit, hardware, remedies
from vpatch.plan.memory import CONTEXT
from vpatch.plan.needs import Needed, needs
from vpatch.plan.refusals import unserved, unserved_stages


class PlanVerdict(Enum):
    """Whether a deployment does what was asked."""

    FITS = "fits"
    TIGHT = "tight"  # it fits at what is likely, and not at the worst that is estimated
    DOES_NOT_FIT = "does not fit"
    CANNOT_KNOW = "cannot know"


FITTING = (PlanVerdict.FITS, PlanVerdict.TIGHT)
# Other names for types, of the same size.
_ALIKE = ("bfloat16", "float16", "fp8_e4m3", "fp8_e5m2")
_REFUSES = "vLLM refuses to start"


@dataclass(frozen=True)
class Choice:
    """A type of KV cache that vLLM can serve the deployment with: what fits, and the overlays that it needs."""

    dtype: str
    fit: Fit
    overlays: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What a deployment needs, takes and holds. If it has `problems`, it does not do what was asked.

    `choices` are its own type of KV cache and all others, the largest first; `more` are ids of opt-in overlays that the
    user adds; `usual` are those that a project's file has `vpatch apply` take by itself, None if it selects none.
    """

    fit: Fit
    needs: tuple[Needed, ...]
    advice: Advice
    problems: tuple[Problem, ...]
    choices: tuple[Choice, ...] = ()
    more: tuple[str, ...] = ()
    usual: Collection[str] | None = None

    @property
    def model(self) -> Model:
        """The model that it is of."""
        return self.fit.model

    @property
    def deployment(self) -> Deployment:
        """The deployment, with the options that were left to vLLM."""
        return self.fit.deployment

    @property
    def overlays(self) -> tuple[str, ...]:
        """The ids of the overlays that it needs, and of the added ones that the release lacks."""
        return tuple(item.id for item in self.needs if item.needed or (item.id in self.more and item.missing))

    @property
    def without(self) -> tuple[str, ...]:
        """A line for each overlay that the user adds and the release does not take."""
        return tuple(
            f"the commands are without {item.id}: {item.state.value} in vLLM {self.deployment.vllm}"
            for item in self.needs
            if item.id in self.more and item.state and not item.missing
        )

    @property
    def verdict(self) -> PlanVerdict:
        """Whether the deployment does what was asked. What vLLM refuses for any reason, does not fit."""
        if any(problem.code is Code.CANNOT_KNOW for problem in self.problems):
            return PlanVerdict.CANNOT_KNOW
        if self.problems:
            return PlanVerdict.DOES_NOT_FIT
        return PlanVerdict.FITS if self.fit.surely and not self.fit.outgrows else PlanVerdict.TIGHT


class CannotKnow(Failure):
    """The size of a model's weights or of its KV cache is unknown, and with it everything that a plan says."""

    def __init__(self, model: Model, deployment: Deployment) -> None:
        self.model, self.deployment = model, deployment
        problems = list(_unknown(model))
        if model.weights is None or model.weights.guessed:
            why = f"plan does not know how large they are in {model.quantization}: " if model.quantization else ""
            remedy = "give --weights-gib, or the folder of the checkpoint: the headers of its files have their sizes"
            problems.append(Problem("unknown weights", model.name, f"{why}{remedy}"))
        super().__init__(*problems)


def _unknown(model: Model) -> Iterator[Problem]:
    """Yield what plan lacks of a model: a fact, not memory."""
    return (Problem("cannot know", model.name, what, code=Code.CANNOT_KNOW) for what in model.unknown)


def plan(
    model: Model,
    deployment: Deployment,
    installed: Sequence[Catalogued],
    *,
    requests: int = 1,
    more: Collection[str] = (),
    any_batch: bool = False,
) -> Plan:
    """Plan a deployment with the installed overlays, `more` of which are opt-in ones that are applied, too.

    `any_batch`: the tokens of a batch are vLLM's default. If it is too small for a block beside the decodes of a step,
    the plan has one that is not.

    Raises:
        Failure: as of `fit`, or no weights are known.
    """
    deployment = replace(deployment, tiles=deployment.tiles or TILES in more)
    if model.weights is None or model.weights.guessed or not model.bounded:
        raise CannotKnow(model, deployment)
    if deployment.kv_cache_dtype == "auto" and model.kv_cache_dtype in types_of(deployment.release):
        deployment = replace(deployment, kv_cache_dtype=model.kv_cache_dtype)
    found = fit(model, deployment)
    if any_batch:
        found = _with_room_for_a_block(found)
        deployment = found.deployment
    if deployment.longest and found.longest:
        found = fit(model, replace(deployment, max_model_len=min(found.longest, deployment.max_model_len)))
    needed = needs(model, found.deployment, installed, outgrows=found.outgrows)
    uncovered = (Problem("vLLM cannot serve it", model.architecture, item.because) for item in needed if item.uncovered)
    problems = (*uncovered, *refusals(found, requests))
    return Plan(found, needed, advise(found, requests), problems, choices(found, installed), tuple(more))


def _with_room_for_a_block(found: Fit) -> Fit:
    """Return a deployment with a larger batch, where prompts need it and it fits, too."""
    caches = found.deployment.enable_prefix_caching
    if not (found.starves_prompts or (found.block_exceeds_batch and caches)):
        return found
    larger = fit(found.model, replace(found.deployment, max_num_batched_tokens=found.least_batch))
    return larger if larger.fits or not found.fits else found


def choices(own: Fit, installed: Sequence[Catalogued]) -> tuple[Choice, ...]:
    """Return what fits with each type of KV cache that the release can serve the model with on this GPU."""
    model, deployment = own.model, own.deployment
    plain = model.dtype if model.kv_cache_dtype else "auto"
    found = []
    for dtype in types_of(deployment.release):
        changed = replace(deployment, kv_cache_dtype=dtype)
        if (dtype in _ALIKE and dtype not in {plain, deployment.kv_cache_dtype}) or any(unserved(model, changed)):
            continue
        with suppress(Failure):
            fits = own if changed == deployment else fit(model, changed)
            needed = needs(model, changed, installed)
            if not any(item.uncovered for item in needed):
                found.append(Choice(dtype, fits, tuple(item.id for item in needed if item.needed)))
    return tuple(sorted(found, key=lambda one: one.fit.likely.tokens))


def refusals(found: Fit, requests: int) -> Iterator[Problem]:
    """Yield the problems that keep a deployment from starting, or from serving so many full-length requests at once."""
    model, deployment = found.model, found.deployment
    yield from _unknown(model)
    _, longest = lengths(model, deployment.release)
    if deployment.max_model_len > longest:
        cause = f"{deployment.max_model_len:,} tokens, of {longest:,} that the model was made for"
        yield Problem("too long for the model", model.name, cause)
    if deployment.speculative_tokens and (model.undrafted or not model.draft_layers) and not model.unknown:
        what = "is loaded without its" if model.undrafted else "has no"
        cause = f"{model.architecture} {what} layers of multi-token prediction"
        yield Problem(_REFUSES, f"--speculative {deployment.speculative_tokens}", cause)
    for option, cause in (*unserved_stages(model, deployment), *unserved(model, deployment)):
        yield Problem(_REFUSES, f"{option}, vLLM {deployment.vllm}", cause)
    if found.block_exceeds_batch and deployment.enable_prefix_caching:
        cause = f"with prefix caching a batch holds a block, which is {found.layout.block_size:,} tokens"
        ways = f"give --max-num-batched-tokens {found.least_batch}, for decodes, too, or --no-enable-prefix-caching"
        yield Problem(_REFUSES, f"--max-num-batched-tokens {deployment.max_num_batched_tokens}", cause, hint=ways)
    if not found.share_is_free:
        cause = f"that share of the card is not free: a process takes {CONTEXT.size.least / GIB:.1f} GiB before it asks"
        yield Problem(_REFUSES, f"--gpu-memory-utilization {deployment.gpu_memory_utilization:g}", cause)
    elif not found.fits:
        yield _does_not_fit(found)
    elif found.likely.concurrency < requests:
        cause = f"{found.likely.concurrency:.2f} of {deployment.max_model_len:,} tokens at once"
        yield Problem("does not serve as many", f"--requests {requests}", cause)


def _does_not_fit(found: Fit) -> Problem:
    deployment, memory, hint = found.deployment, found.memory, _what_would_fit(found)
    if found.lacks_states:
        more = "" if memory.kv_cache.exact else ", and more with fewer requests"
        why = f"CUDA graphs want a block for each of {found.states:,} requests, there are {found.likely.blocks:,}{more}"
        return Problem(_REFUSES, f"--max-num-seqs {deployment.max_num_seqs}", why, hint=hint)
    have, need, share = (size / GIB for size in (memory.kv_cache.likely, found.request, memory.requested))
    missing = need - have
    if found.overflows:
        missing = -memory.left.likely / GIB
        why = f"a KV cache of {have:.2f} GiB, as asked for, and what comes before it are more than the card has"
    elif have <= 0:
        why = f"what comes before the KV cache takes {-have:.2f} GiB more than vLLM's share of {share:.2f}"
    else:
        why = f"a request of {deployment.max_model_len:,} tokens takes {need:.2f} GiB, {have:.2f} are there"
    cause = f"{missing:.2f} GiB are missing on a GPU: {why}"
    where = f"{deployment.gpu.name}, {memory.total / GIB:.2f} GiB"
    return Problem("does not fit", where, cause, code=Code.DOES_NOT_FIT, hint=hint)


def _what_would_fit(found: Fit) -> str:
    """Return what to change, the GPUs last."""
    here, elsewhere = "; ".join(remedies(found)), "; ".join(hardware(found))
    first = f"would fit: {here}" if here else "no option that plan knows makes it fit this GPU"
    return f"{first}; on more or larger GPUs: {elsewhere}" if elsewhere else first
