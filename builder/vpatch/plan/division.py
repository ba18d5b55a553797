"""What a model can be divided into, ranks and stages, and what a release has no KV cache for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

from packaging.version import Version

from vpatch.errors import Failure, Problem
from vpatch.plan import ATTENTIVE, BOTH, CHUNKED, KDA, KNOWN, MAMBA2, SHARED, SLIDING, Model
from vpatch.plan import latent as mla
from vpatch.plan.deployment import TURBOQUANT, Deployment, arithmetic_of
from vpatch.plan.kv_types import refused


def check(model: Model, deployment: Deployment) -> None:
    """Raise `Failure`, with every problem, if a release has no KV cache for a model in this deployment."""
    problems = [*_too_old(model, deployment), *_states(model, deployment), *refused(model, deployment)]
    windowed = not {SLIDING, CHUNKED}.isdisjoint(model.layers)
    if deployment.kv_cache_dtype in TURBOQUANT and (windowed or BOTH in model.layers):
        cause = "plan does not know what TurboQuant makes of sliding windows and chunks"
        if BOTH in model.layers:
            cause = "vLLM does not find the attention of layers that also keep a state"
        problems.append(Problem("no such KV cache", deployment.kv_cache_dtype, cause))
    if not windowed and {*ATTENTIVE}.isdisjoint(model.layers):
        problems.append(Problem("no attention", model.name, "a KV cache is that of attention layers"))
    if latent := model.attention.latent:
        problems += mla.refused(model.attention, latent, deployment)
    undivided = (*_heads(model, deployment.tensor_parallel_size), *_parts(model, deployment.pipeline_parallel_size))
    problems += [Problem("cannot divide the model", *why) for why in undivided]
    if problems:
        raise Failure(*problems)


def _too_old(model: Model, deployment: Deployment) -> Iterator[Problem]:
    """Yield that a release does not have the architecture, or not with such a config."""
    if model.since and deployment.vllm.release < Version(model.since).release:
        known = KNOWN.get(model.architecture)
        such = "" if known and known.since == model.since else ", with such a config"
        where = f"{model.architecture} on vLLM {deployment.vllm}"
        yield Problem("no such model", where, f"vLLM has it from {model.since} on{such}")


def _states(model: Model, deployment: Deployment) -> Iterator[Problem]:
    """Yield why states have no such type."""
    given, types = deployment.mamba_ssm_cache_dtype, arithmetic_of(deployment.vllm).state_dtypes
    if given not in types:
        yield Problem("no such states", f"{given} on vLLM {deployment.vllm}", f"it knows {', '.join(types)}")
    elif model.state and model.state.kind == KDA and given not in ("auto", "float32"):
        yield Problem("no such states", given, "those of Kimi Delta Attention are in float32, whatever is given")


def _heads(model: Model, ranks: int) -> Iterator[tuple[str, str]]:
    """Yield why heads cannot be divided among ranks."""
    divided = [("attention heads", model.attention.heads)]
    for kv_heads in sorted({shape.kv_heads for shape in (model.attention, model.local) if shape}):
        if kv_heads > ranks:
            divided.append(("KV heads", kv_heads))
        elif ranks % kv_heads:
            yield f"{ranks} GPUs", f"{kv_heads} KV heads cannot be copied to them evenly"
    if state := model.state:
        copied = state.kind == MAMBA2 and state.groups == 1
        divided += [("heads of a state", state.heads), ("groups of a state", ranks if copied else state.groups)]
    for what, count in divided:
        if count % ranks:
            yield f"{ranks} GPUs", f"its {count} {what} are not divisible by {ranks}"


def _parts(model: Model, stages: int) -> Iterator[tuple[str, str]]:
    """Yield why layers cannot be divided among stages."""
    known = KNOWN.get(model.architecture)
    if stages > 1 and known and known.state == SHARED:
        yield f"{stages} stages", "vLLM does not divide layers that share their attention"
    elif stages > len(model.layers):
        yield f"{stages} stages", f"it has {len(model.layers)} layers"
    elif model.borrowing and stages_of(len(model.layers), stages)[-1].start > _first_lender(model):
        # Source: `validate_kv_sharing_target`.
        yield f"{stages} stages", "layers would be on another stage than those whose KV cache they read"


def stages_of(layers: int, stages: int) -> list[range]:
    """Divide layers among stages as vLLM's `get_pp_indices`: the remainder goes to the stages before the last."""
    counts = [layers // stages] * stages
    for stage in range(layers % stages):
        counts[-2 - stage] += 1
    return [range(*pair) for pair in pairwise([0, *accumulate(counts)])]


def _first_lender(model: Model) -> int:
    """Return the first of the layers whose KV cache the last ones read: the last of each kind that has its own."""
    own = model.layers[: len(model.layers) - model.borrowing]
    return min(len(own) - 1 - own[::-1].index(kind) for kind in set(model.layers[len(own) :]))
