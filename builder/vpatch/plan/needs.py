"""Which overlays a deployment needs: what they say they are for, and what they say the release is to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from vpatch.core.overlay import Catalogued, Need, Overlay, Use
from vpatch.core.verdict import State
from vpatch.errors import Failure, Problem
from vpatch.plan.model import Deployment, Model


@dataclass(frozen=True)
class Needed:
    """Whether a deployment needs an overlay (None: nobody can say), the state of the release, and why.

    `uncovered` says why the overlay does not make the deployment work, "" where it does.
    """

    id: str
    needed: bool | None
    because: str
    state: State | None = None
    opt_in: bool = False
    uncovered: str = ""


def use_of(model: Model, deployment: Deployment) -> Use:
    """Give what overlays are asked about."""
    return Use(
        hybrid=model.hybrid,
        kv_cache_dtype=deployment.kv_cache_dtype,
        longest=deployment.max_model_len,
        chunk=deployment.max_num_batched_tokens,
        quantization=model.quantization,
        head=model.head.scheme if model.head else None,
        architecture=model.architecture,
    )


def needs(model: Model, deployment: Deployment, installed: Sequence[Catalogued]) -> tuple[Needed, ...]:
    """Say of every installed overlay whether the deployment needs it, on a pristine vLLM of its release.

    The states are those that the overlays declare by release. Only the tree itself decides when they are applied.

    Raises:
        Failure: an overlay cannot say, for it raised.
    """
    use = use_of(model, deployment)
    found, problems = [], []
    for item in installed:
        try:
            said = _needed(item, use, deployment.vllm)
            if model.unknown and said.needed != _needed(item, replace(use, hybrid=True), deployment.vllm).needed:
                said = replace(said, needed=None, because="it is for hybrid models, and this architecture is not known")
            found.append(said)
        except Exception as error:  # anybody may ship an overlay
            problems.append(Problem("cannot ask overlay", item.id, f"{type(error).__name__}: {error}"))
    if problems:
        raise Failure(*problems)
    return tuple(found)


def _needed(item: Catalogued, use: Use, vllm: Version) -> Needed:
    state, why = next(_stated(item.overlay, vllm), (None, ""))
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


def _stated(overlay: Overlay, vllm: Version) -> Iterator[tuple[State, str]]:
    """Give the states that an overlay declares for a release, each with the reason."""
    for span, said in overlay.releases.items():
        if SpecifierSet(span, prereleases=True).contains(vllm.base_version):
            word, _, why = said.partition(":")
            yield State(word.strip()), why.strip()
