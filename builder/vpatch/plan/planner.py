"""A plan: the overlays that a deployment needs, the memory that it takes, what refuses it, and known pitfalls."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

from vpatch.core.overlay import Catalogued
from vpatch.errors import Code, Failure, Problem
from vpatch.plan import Model, Weights
from vpatch.plan.cautions import Caution, cautions
from vpatch.plan.deployment import Deployment
from vpatch.plan.fit import Advice, Fit, advise, fit
from vpatch.plan.kv_types import types_of, unserved
from vpatch.plan.needs import Needed, needs
from vpatch.plan.refusals import refusals, unknown


class Verdict(Enum):
    """Whether a deployment does what was asked."""

    FITS = "fits"
    TIGHT = "tight"  # it fits at what is likely, and not at the worst that is estimated
    DOES_NOT_FIT = "does not fit"
    CANNOT_KNOW = "cannot know"


FITTING = (Verdict.FITS, Verdict.TIGHT)
# Other names for types, of the same size.
_ALIKE = ("bfloat16", "float16", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class Choice:
    """A type of KV cache that vLLM can serve the deployment with: what fits, and the overlays that it needs."""

    dtype: str
    fit: Fit
    overlays: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What a deployment needs, takes and holds. If it has `problems`, it does not do what was asked.

    `choices` are its own type of KV cache and all others, the largest first.
    """

    model: Model
    fit: Fit
    needs: tuple[Needed, ...]
    advice: Advice
    cautions: tuple[Caution, ...]
    problems: tuple[Problem, ...]
    choices: tuple[Choice, ...] = ()

    @property
    def deployment(self) -> Deployment:
        """The deployment, with the options that were left to vLLM."""
        return self.fit.deployment

    @property
    def overlays(self) -> tuple[str, ...]:
        """The ids of the overlays that it needs."""
        return tuple(item.id for item in self.needs if item.needed)

    @property
    def verdict(self) -> Verdict:
        """Whether the deployment does what was asked. What vLLM refuses for any reason, does not fit."""
        if any(problem.code is Code.CANNOT_KNOW for problem in self.problems):
            return Verdict.CANNOT_KNOW
        if self.problems:
            return Verdict.DOES_NOT_FIT
        return Verdict.FITS if self.fit.surely and not self.fit.outgrows else Verdict.TIGHT


class CannotKnow(Failure):
    """The size of a model's weights or of its KV cache is unknown, and with it everything that a plan says."""

    def __init__(self, model: Model, deployment: Deployment) -> None:
        self.model, self.deployment = model, deployment
        lacking = (unknown(model, what) for what in model.unknown)
        super().__init__(*lacking, *(() if model.weights and not model.weights.guessed else (_unweighed(model),)))


def _unweighed(model: Model) -> Problem:
    why = f"plan does not know how large they are in {model.quantization}: " if model.quantization else ""
    remedy = "give --weights-gib, or the folder of the checkpoint: the headers of its files have their sizes"
    return Problem("unknown weights", model.name, f"{why}{remedy}")


def plan(
    model: Model, deployment: Deployment, installed: Sequence[Catalogued], *, requests: int = 1, slow_link: bool = False
) -> Plan:
    """Plan a deployment with the installed overlays; raise `Failure` as `fit` does, and if no weights are known."""
    if model.weights is None or model.weights.guessed or not model.bounded:
        raise CannotKnow(model, deployment)
    if deployment.kv_cache_dtype == "auto" and model.kv_cache_dtype in types_of(deployment.vllm):
        deployment = replace(deployment, kv_cache_dtype=model.kv_cache_dtype)
    found = fit(model, model.weights, deployment)
    if deployment.longest and found.longest:
        deployment = replace(deployment, max_model_len=min(found.longest, deployment.max_model_len))
        found = fit(model, model.weights, deployment)
    needed = needs(model, deployment, installed, outgrows=found.outgrows)
    uncovered = (Problem("vLLM cannot serve it", model.architecture, item.because) for item in needed if item.uncovered)
    problems = (*uncovered, *refusals(model, model.weights, found, requests))
    advice = advise(model, model.weights, deployment, requests)
    told = cautions(model, found, slow_link=slow_link)
    return Plan(model, found, needed, advice, told, problems, choices(model, model.weights, deployment, installed))


def choices(
    model: Model, weights: Weights, deployment: Deployment, installed: Sequence[Catalogued]
) -> tuple[Choice, ...]:
    """Return what fits with each type of KV cache that the release can serve the model with on this GPU."""
    plain = model.dtype if model.kv_cache_dtype else "auto"
    found = []
    for dtype in types_of(deployment.vllm):
        changed = replace(deployment, kv_cache_dtype=dtype)
        if (dtype in _ALIKE and dtype not in {plain, deployment.kv_cache_dtype}) or any(unserved(model, changed)):
            continue
        with suppress(Failure):
            needed = needs(model, changed, installed)
            if not any(item.uncovered for item in needed):
                ids = tuple(item.id for item in needed if item.needed)
                found.append(Choice(dtype, fit(model, weights, changed), ids))
    return tuple(sorted(found, key=lambda one: one.fit.likely.tokens))
