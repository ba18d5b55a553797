"""Which of the installed overlays a deployment needs, by what each says of it and of the release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from vpatch.core.overlay import Catalogued, Need, Use, declared
from vpatch.core.verdict import State
from vpatch.errors import Problem, raise_all
from vpatch.plan import Model
from vpatch.plan.deployment import Deployment


@dataclass(frozen=True)
class Needed:
    """Whether a deployment needs an overlay (None: unknown), the overlay's state in the release, and the reason."""

    id: str
    needed: bool | None
    because: str
    state: State | None = None
    opt_in: bool = False
    uncovered: str = ""  # why the overlay does not make the deployment work
    recommended: bool = False  # opt-in, not needed, and an improvement

    @property
    def missing(self) -> bool:
        """Whether the release does not have what the overlay does, as far as the overlay says."""
        return self.state in (State.PENDING, None)


def needs(
    model: Model, deployment: Deployment, installed: Sequence[Catalogued], *, outgrows: bool = False
) -> tuple[Needed, ...]:
    """Return whether the deployment needs each overlay, by the states that overlays declare for the release.

    `outgrows`: what vLLM does not count may be more than the card has.
    """
    use = Use(
        hybrid=model.hybrid,
        kv_cache_dtype=deployment.kv_cache_dtype,
        longest=deployment.max_model_len,
        chunk=deployment.max_num_batched_tokens,
        quantization=model.quantization,
        block_fp8=model.block_fp8,
        head=model.head,
        architecture=model.architecture,
        speculative_tokens=deployment.speculative_tokens,
        prefix_caching=deployment.enable_prefix_caching,
        capability=deployment.gpu.capability,
        outgrows=outgrows,
        ranks=deployment.tensor_parallel_size,
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
    raise_all(problems)
    return tuple(found)


def _needed(item: Catalogued, use: Use, vllm: Version) -> Needed:
    state, why = declared(tuple(item.overlay.releases.items()), vllm.base_version)
    needed: bool | None = None
    uncovered, recommended = "", False
    if item.overlay.needed is None:
        because = f"it does not say what it is for: see `vpatch show {item.id}`"
    elif not isinstance(need := item.overlay.needed(use), Need):
        raise TypeError(f"`needed` gave {type(need).__name__}, not vpatch.Need")
    elif not need.needed:
        recommended = need.recommended and item.overlay.opt_in and state is State.PENDING
        needed, because = False, need.because
        if need.recommended and state in (State.MERGED, State.NOT_APPLICABLE):
            because = f"{state.value} in vLLM {vllm}: {why}"
    elif need.uncovered:
        needed, because, uncovered = False, f"{need.because}, but {need.uncovered}", need.uncovered
    elif state is None:
        because = f"{need.because}; it does not say what vLLM {vllm} is to it"
    elif state is State.PENDING:
        needed, because = True, f"{need.because}; vLLM {vllm}: {why}"
    else:
        needed, because = False, f"{state.value} in vLLM {vllm}: {why}"
    return Needed(item.id, needed, because, state, item.overlay.opt_in, uncovered, recommended)
