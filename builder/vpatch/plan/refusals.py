"""What vLLM refuses before memory matters: a KV cache that cannot be laid out, and one that can, but is not served."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from vpatch.errors import Problem, UnknownName, did_you_mean, nearest, raise_all
from vpatch.plan import ATTENTIVE, BOTH, CHUNKED, KDA, MAMBA2, SHARED, SLIDING, Latent, Model, latent
from vpatch.plan.architectures import KNOWN
from vpatch.plan.deployment import (
    AMPERE,
    BLACKWELL,
    CONSUMER_BLACKWELL,
    FP8,
    HOPPER,
    KERNEL_BLOCK,
    KV_TYPES,
    NVFP4,
    TURBOQUANT,
    Deployment,
    changes_of,
    types_of,
)

BOUNDARY = 2  # layers that TurboQuant skips at each end of a dense model, at most half of the layers at each
_FLASHINFER_HEADS = (64, 128, 256)
_LATENT_TYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3")
_ADA, _ANY = (8, 9), (99, 0)  # compute capabilities; one that is not known breaks no rule
_MISREAD = 64  # size of heads that FlashAttention 2, of FlashInfer's kernels for other GPUs, misreads

Reasons = Iterator[tuple[str, str]]  # what is refused, and why


def check(model: Model, deployment: Deployment) -> None:
    """Raise `Failure`, with every problem, if a release has no KV cache for a model in this deployment."""
    problems = list(_too_old(model, deployment))
    problems += [Problem("no such KV cache", *why) for why in _type(model, deployment)]
    windowed = not {SLIDING, CHUNKED}.isdisjoint(model.layers)
    if deployment.kv_cache_dtype in TURBOQUANT and (windowed or BOTH in model.layers):
        cause = "plan does not know what TurboQuant makes of sliding windows and chunks"
        if BOTH in model.layers:
            cause = "vLLM does not find the attention of layers that also keep a state"
        problems.append(Problem("no such KV cache", deployment.kv_cache_dtype, cause))
    if not windowed and {*ATTENTIVE}.isdisjoint(model.layers):
        problems.append(Problem("no attention", model.name, "a KV cache is that of attention layers"))
    if model.attention.latent:
        problems += _latent(model, model.attention.latent, deployment)
    undivided = (*_heads(model, deployment.tensor_parallel_size), *_stages(model, deployment))
    problems += [Problem("cannot divide the model", *why) for why in undivided]
    raise_all(problems)


def check_type(deployment: Deployment) -> None:
    """Raise `UnknownName` if no release has a KV cache of the type that is asked for."""
    if deployment.kv_cache_dtype not in KV_TYPES:
        raise UnknownName(Problem("no such KV cache", *_unknown_type(deployment)))


def _unknown_type(deployment: Deployment) -> tuple[str, str]:
    dtype, known = deployment.kv_cache_dtype, types_of(deployment.release)
    cause = f"{did_you_mean(nearest(dtype, known), ' ')}plan knows {', '.join(known)}"
    return f"{dtype} on vLLM {deployment.vllm}", cause


def _too_old(model: Model, deployment: Deployment) -> Iterator[Problem]:
    """Yield why a release does not have the model, or no states of the type that is asked for."""
    if model.since and deployment.release.number < Version(model.since):
        known = KNOWN.get(model.architecture)
        such = "" if known and known.since == model.since else ", with such a config"
        where = f"{model.architecture} on vLLM {deployment.vllm}"
        yield Problem("no such model", where, f"vLLM has it from {model.since} on{such}")
    given, types = deployment.mamba_ssm_cache_dtype, deployment.release.state_dtypes
    if given not in types:
        yield Problem("no such states", f"{given} on vLLM {deployment.vllm}", f"it knows {', '.join(types)}")
    elif model.state and model.state.kind == KDA and given not in ("auto", "float32"):
        yield Problem("no such states", given, "those of Kimi Delta Attention are in float32, whatever is given")


def _type(model: Model, deployment: Deployment) -> Reasons:
    """Yield why a release has no KV cache of this type, on this GPU, for this model."""
    dtype, capability = deployment.kv_cache_dtype, deployment.gpu.capability
    where = f"{dtype} on vLLM {deployment.vllm}"
    if dtype not in KV_TYPES:
        yield _unknown_type(deployment)
        return
    if dtype not in types_of(deployment.release):
        yield where, f"vLLM has it from {KV_TYPES[dtype].since} on"
        return
    first = KV_TYPES[dtype].first_on(capability) if capability else deployment.release.number
    if first is None or deployment.release.number < first:
        here = f"{deployment.gpu.name} (compute capability {'.'.join(map(str, capability or ()))})"
        yield f"{where}, {here}", f"vLLM has kernels for it {KV_TYPES[dtype].spans()}"
    yield from ((where, cause) for cause in _without_kernel(model, deployment))


def _without_kernel(model: Model, deployment: Deployment) -> Iterator[str]:
    """Yield why kernels do not take the layers of a model."""
    release, dtype, major = deployment.release, deployment.kv_cache_dtype, deployment.gpu.major
    sizes = {shape.head_size for shape in (model.attention, model.local) if shape}
    if dtype in NVFP4:
        heads = [size for size in release.nvfp4_heads if size != _MISREAD or major in {BLACKWELL, 0}]
        too_wide = not release.mixed_nvfp4_heads and max(sizes) > max(_FLASHINFER_HEADS)
        if others := sizes - {*heads}:
            yield f"on this GPU it takes heads of {', '.join(map(str, heads))}, not of {max(others)}"
        elif len(sizes) > 1 and (major in {AMPERE, CONSUMER_BLACKWELL} or too_wide):
            yield "here layers with two sizes of heads are left to Triton, which does not know it"
    if dtype == "int4_per_token_head":
        if not release.any_int4_heads and any(size & (size - 1) for size in sizes):
            yield f"before {changes_of('any_int4_heads')[0]} it takes heads of a power of two"
        if not release.int4_windows and SLIDING in model.layers:
            yield f"before {changes_of('int4_windows')[0]} sliding windows have another size than its kernel"


def _latent(model: Model, shape: Latent, deployment: Deployment) -> Iterator[Problem]:
    """Yield why a release has no kernels for latent attention, or none for a KV cache of this type."""
    release, dtype, capability = deployment.release, deployment.kv_cache_dtype, deployment.gpu.capability or _ANY
    if release.latent_heads and [shape.nope, shape.rope, shape.value] not in release.latent_heads:
        where = f"{shape.nope} + {shape.rope} and {shape.value} elements of a key and a value"
        yield Problem("no kernel for latent attention", where, f"vLLM {deployment.vllm} has none for prompts")
    if shape.index and deployment.gpu.major not in {HOPPER, BLACKWELL, 0}:
        where = f"compute capability {capability[0]}.{capability[1]}"
        yield Problem("no kernel for sparse latent attention", where, "plan knows those of Hopper and Blackwell's 10.x")
    where = f"--kv-cache-dtype {dtype}"
    if dtype not in _LATENT_TYPES or (shape.index and dtype == "fp8_e4m3"):
        cause = "no kernel for latent attention takes it; auto and fp8 have some"
        yield Problem("no such KV cache", where, cause)
    ours = latent.block_size(model.attention, shape, deployment) == KERNEL_BLOCK
    if dtype in FP8 and ours and capability < _ADA and release.checks_latent_fp8:
        yield Problem("no such KV cache", where, "before Ada (compute capability 8.9) Triton has no FP8")


def _heads(model: Model, ranks: int) -> Reasons:
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


def _stages(model: Model, deployment: Deployment) -> Reasons:
    """Yield why layers cannot be divided among stages."""
    stages, count, known = deployment.pipeline_parallel_size, len(model.layers), KNOWN.get(model.architecture)
    own = model.layers[: count - model.borrowing]
    # The layers whose KV cache the last ones read: the last of each kind that has its own.
    lenders = [len(own) - 1 - own[::-1].index(kind) for kind in set(model.layers[len(own) :])]
    if stages > 1 and known and known.state == SHARED:
        yield f"{stages} stages", "vLLM does not divide layers that share their attention"
    elif stages > count:
        yield f"{stages} stages", f"it has {count} layers"
    elif lenders and deployment.stages(count)[-1].start > min(lenders):  # source: `validate_kv_sharing_target`
        yield f"{stages} stages", "layers would be on another stage than those whose KV cache they read"


def unserved(model: Model, deployment: Deployment) -> Reasons:
    """Yield an option with the reason why vLLM does not start with this type of KV cache, though it can be laid out."""
    # `tests/plan/test_agreement.py` draws cases of each rule for the releases' own code.
    release, dtype, capability = deployment.release, deployment.kv_cache_dtype, deployment.gpu.capability or _ANY
    option, stages = f"--kv-cache-dtype {dtype}", deployment.pipeline_parallel_size
    skips_some = len(skipped_layers(model, deployment)) < len(model.layers)
    partly = not model.hybrid and dtype in TURBOQUANT and skips_some
    flashinfer_size = model.attention.head_size in _FLASHINFER_HEADS
    if release.uneven_stages and partly and stages > 1:
        cause = "TurboQuant on a dense model gives stages different block sizes"
        later = changes_of("uneven_stages")[-1]
        yield f"--pipeline-parallel-size {stages}", f"{cause}: refused, or from {later} on many times as large"
    if release.flashinfer_beside_turboquant and partly and capability[0] == BLACKWELL and flashinfer_size:
        cause = "on this GPU the layers that TurboQuant leaves alone run in FlashInfer"
        yield option, f"{cause}, which has no layout in common with it"
    mixed = model.local is not None and model.local.head_size != model.attention.head_size  # which is left to Triton
    checked = release.checks_fp8 or model.attention.latent
    if checked and dtype in FP8 and capability < _ADA and (mixed or not flashinfer_size):
        yield option, "before Ada (compute capability 8.9) Triton has no FP8, and FlashInfer no heads of this size"
    if release.one_float_type and dtype in {"bfloat16", "float16"} - {model.dtype}:
        yield option, "it is another float type than the model's"


def unserved_stages(model: Model, deployment: Deployment) -> Reasons:
    """Yield an option with the reason why vLLM does not start with these stages, though they can be laid out."""
    release, stages = deployment.release, deployment.pipeline_parallel_size
    pipeline = f"--pipeline-parallel-size {stages}"
    if stages > 1 and deployment.speculative_tokens and not release.drafts_on_stages:
        yield pipeline, "layers of multi-token prediction cannot be on a stage"
    parts = [model.layers[stage.start : stage.stop] for stage in deployment.stages(len(model.layers))]
    if release.bare_stages and model.hybrid and any(set(ATTENTIVE).isdisjoint(part) for part in parts):
        later = changes_of("bare_stages")[-1]
        cause = f"refused, or from {later} on laid out in a way that is not planned"
        yield pipeline, f"a stage would have no attention layer: {cause}"


def skipped_layers(model: Model, deployment: Deployment) -> frozenset[int]:
    """Return the layers that TurboQuant skips: those without attention, in a dense model those at the boundary."""
    if deployment.kv_cache_dtype not in TURBOQUANT:
        return frozenset()
    count = len(model.layers)
    if model.hybrid:
        return frozenset(index for index, kind in enumerate(model.layers) if kind not in ATTENTIVE)
    edge = min(BOUNDARY, count // 2)
    return frozenset({*range(edge), *range(count - edge, count)})
