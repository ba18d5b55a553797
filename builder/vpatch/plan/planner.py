"""A plan: the overlays that a deployment needs, the memory that it takes, and the problems that it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from vpatch.core.overlay import Catalogued, Need, Overlay, Use
from vpatch.core.verdict import State
from vpatch.errors import Failure, Problem
from vpatch.plan.architectures import Model
from vpatch.plan.cautions import Caution, cautions, refusals
from vpatch.plan.deployment import Deployment
from vpatch.plan.fit import Advice, Fit, advise, fit


@dataclass(frozen=True)
class Needed:
    """Whether a deployment needs an overlay (None: unknown), the overlay's state in the release, and the reason.

    `uncovered` is why the overlay does not make the deployment work, "" if it does.
    """

    id: str
    needed: bool | None
    because: str
    state: State | None = None
    opt_in: bool = False
    uncovered: str = ""


@dataclass(frozen=True)
class Plan:
    """What a deployment needs, takes and holds. If it has `problems`, it does not do what was asked."""

    model: Model
    fit: Fit
    needs: tuple[Needed, ...]
    advice: Advice
    cautions: tuple[Caution, ...]
    problems: tuple[Problem, ...]

    @property
    def deployment(self) -> Deployment:
        """The deployment, with the options that were left to vLLM."""
        return self.fit.deployment

    @property
    def overlays(self) -> tuple[str, ...]:
        """The ids of the overlays that it needs."""
        return tuple(item.id for item in self.needs if item.needed)


def plan(
    model: Model, deployment: Deployment, installed: Sequence[Catalogued], *, requests: int = 1, slow_link: bool = False
) -> Plan:
    """Plan a deployment of a model with the installed overlays.

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
        deployment = replace(deployment, max_model_len=min(found.longest, deployment.max_model_len))
        found = fit(model, model.weights, deployment)
    needed = needs(model, deployment, installed)
    uncovered = (Problem("vLLM cannot serve it", model.architecture, item.because) for item in needed if item.uncovered)
    problems = (*uncovered, *refusals(model, model.weights, found, requests))
    advice = advise(model, model.weights, deployment, requests)
    return Plan(model, found, needed, advice, cautions(model, found, slow_link=slow_link), problems)


def needs(model: Model, deployment: Deployment, installed: Sequence[Catalogued]) -> tuple[Needed, ...]:
    """Return whether the deployment needs each installed overlay; raise `Failure` if an overlay raised.

    The states are those that the overlays declare for a pristine vLLM of the release. `vpatch status` reads a tree's.
    """
    use = Use(
        hybrid=model.hybrid,
        kv_cache_dtype=deployment.kv_cache_dtype,
        longest=deployment.max_model_len,
        chunk=deployment.max_num_batched_tokens,
        quantization=model.quantization,
        head=model.head.scheme if model.head else None,
        architecture=model.architecture,
    )
    found, problems = [], []
    for item in installed:
        try:
            need = _needed(item, use, deployment.vllm)
            if model.unknown and need.needed != _needed(item, replace(use, hybrid=True), deployment.vllm).needed:
                need = replace(need, needed=None, because="it is for hybrid models, and this architecture is not known")
            found.append(need)
        except Exception as error:  # an overlay may be anybody's code
            problems.append(Problem("cannot ask overlay", item.id, f"{type(error).__name__}: {error}"))
    if problems:
        raise Failure(*problems)
    return tuple(found)


def _needed(item: Catalogued, use: Use, vllm: Version) -> Needed:
    state, why = _declared(item.overlay, vllm)
    needed: bool | None = None
    uncovered = ""
    if item.overlay.needed is None:
        because = f"it does not say what it is for: see `vpatch show {item.id}`"
    elif not isinstance(need := item.overlay.needed(use), Need):
        raise TypeError(f"`needed` gave {type(need).__name__}, not vpatch.Need")
    elif not need.needed:
        needed, because = False, need.because
    elif need.uncovered:
        needed, because, uncovered = False, f"{need.because}, but {need.uncovered}", need.uncovered
    elif state is None:
        because = f"{need.because}; it does not say what vLLM {vllm} is to it"
    elif state is State.PENDING:
        needed, because = True, f"{need.because}; vLLM {vllm}: {why}"
    else:
        needed, because = False, f"{state.value} in vLLM {vllm}: {why}"
    return Needed(item.id, needed, because, state, item.overlay.opt_in, uncovered)


def _declared(overlay: Overlay, vllm: Version) -> tuple[State | None, str]:
    """Return the state that an overlay declares for a release, and the reason."""
    for span, declared in overlay.releases.items():
        if SpecifierSet(span, prereleases=True).contains(vllm.base_version):
            word, _, why = declared.partition(":")
            return State(word.strip()), why.strip()
    return None, ""
