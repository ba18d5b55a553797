"""Types of KV cache: which release has each, on which GPUs and for which heads, and what vLLM refuses besides.

Source: `CacheDType`, and what attention backends say of themselves, which the releases' table repeats. For scales of
each token and head there is Triton's kernel, for NVFP4 FlashInfer's. Up to 0.21, vLLM takes FlashAttention for all of
them on Hopper, which knows none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from packaging.version import Version

from vpatch.errors import Problem, did_you_mean, nearest
from vpatch.plan import ATTENTIVE, SLIDING, Model, table
from vpatch.plan.deployment import (
    AMPERE,
    BLACKWELL,
    CONSUMER_BLACKWELL,
    FP8,
    NVFP4,
    OLDEST,
    TURBOQUANT,
    Deployment,
    arithmetic_of,
    release_of,
)

BOUNDARY = 2  # layers that TurboQuant skips at each end of a dense model, at most half of the layers at each

_FLASHINFER_HEADS = (64, 128, 256)
_ADA, _ANY = (8, 9), (99, 0)  # compute capabilities; one that is not known breaks no rule
_MISREAD = 64  # size of heads that FlashAttention 2, of FlashInfer's kernels for other GPUs, misreads


@dataclass(frozen=True)
class KvType:
    """A type: the first release with its name, and the first with kernels for it on GPUs from a compute capability on.

    The latter goes up to the next major one. Without any `cards`, no GPU is refused.
    """

    since: str = str(OLDEST)
    cards: Mapping[str, str] = field(default_factory=dict)

    def first_on(self, capability: tuple[int, int]) -> Version | None:
        """Return the first release with kernels for a GPU, None if no release has any."""
        if not self.cards or capability == _ANY:
            return OLDEST
        for card, release in self.cards.items():
            major, minor = map(int, card.split("."))
            if capability[0] == major and capability[1] >= minor:
                return Version(release)
        return None

    def spans(self) -> str:
        """Describe which GPUs have kernels, and since when."""
        cards: dict[str, list[str]] = {}
        for card, release in self.cards.items():
            cards.setdefault(release, []).append(f"{card.removesuffix('.0')}.x" if card.endswith(".0") else card)
        return "; ".join(f"on {', '.join(some)} from {release} on" for release, some in cards.items())


KV_TYPES = {name: KvType(**row) for name, row in table("releases.toml")["kv_cache_dtypes"].items()}


def types_of(vllm: Version) -> list[str]:
    """Return the types that a release has, on any GPU; raise `UnknownName` as `release_of` does."""
    return [name for name, one in KV_TYPES.items() if Version(one.since) <= release_of(vllm)]


def refused(model: Model, deployment: Deployment) -> Iterator[Problem]:
    """Yield why a release has no KV cache of this type, on this GPU, for this model."""
    dtype, vllm, capability = deployment.kv_cache_dtype, release_of(deployment.vllm), deployment.gpu.capability
    where, what = f"{dtype} on vLLM {deployment.vllm}", "no such KV cache"
    if dtype not in (known := types_of(vllm)):
        cause = f"{did_you_mean(nearest(dtype, known), ' ')}plan knows {', '.join(known)}"
        yield Problem(what, where, f"vLLM has it from {KV_TYPES[dtype].since} on" if dtype in KV_TYPES else cause)
        return
    first = KV_TYPES[dtype].first_on(capability or _ANY)
    if first is None or vllm < first:
        here = f"{deployment.gpu.name} (compute capability {'.'.join(map(str, capability or ()))})"
        yield Problem(what, f"{where}, {here}", f"vLLM has kernels for it {KV_TYPES[dtype].spans()}")
    yield from (Problem(what, where, cause) for cause in _without_kernel(model, deployment))


def _without_kernel(model: Model, deployment: Deployment) -> Iterator[str]:
    """Yield why kernels do not take the layers of a model."""
    vllm, dtype, major = deployment.vllm.release, deployment.kv_cache_dtype, (deployment.gpu.capability or _ANY)[0]
    sizes = {shape.head_size for shape in (model.attention, model.local) if shape}
    if dtype in NVFP4:
        known = arithmetic_of(deployment.vllm).nvfp4_heads
        heads = [size for size in known if size != _MISREAD or major in {BLACKWELL, *_ANY}]
        if others := sizes - {*heads}:
            yield f"on this GPU it takes heads of {', '.join(map(str, heads))}, not of {max(others)}"
        elif len(sizes) > 1 and (
            major in {AMPERE, CONSUMER_BLACKWELL} or (vllm < (0, 24) and max(sizes) > max(_FLASHINFER_HEADS))
        ):
            yield "here layers with two sizes of heads are left to Triton, which does not know it"
    if dtype == "int4_per_token_head":
        if vllm < (0, 32) and any(size & (size - 1) for size in sizes):
            yield "before 0.32 it takes heads of a power of two"
        if vllm < (0, 28) and SLIDING in model.layers:
            yield "before 0.28 sliding windows have another size than its kernel"


def unserved(model: Model, deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Yield an option with the reason why vLLM does not start with this type of KV cache, though it can be laid out."""
    # `tests/plan/test_agreement.py` draws cases of each rule for the releases' own code.
    vllm, dtype, capability = deployment.vllm.release, deployment.kv_cache_dtype, deployment.gpu.capability or _ANY
    option, stages = f"--kv-cache-dtype {dtype}", deployment.pipeline_parallel_size
    skips_some = len(skipped_layers(model, deployment)) < len(model.layers)
    partly = not model.hybrid and dtype in TURBOQUANT and skips_some
    if vllm >= (0, 28) and partly and stages > 1:
        cause = "TurboQuant on a dense model gives stages different block sizes"
        yield f"--pipeline-parallel-size {stages}", f"{cause}: refused, or from 0.29 on many times as large"
    if vllm >= (0, 29) and partly and capability[0] == BLACKWELL and model.attention.head_size in _FLASHINFER_HEADS:
        cause = "on this GPU the layers that TurboQuant leaves alone run in FlashInfer"
        yield option, f"{cause}, which has no layout in common with it"
    mixed = model.local is not None and model.local.head_size != model.attention.head_size  # which is left to Triton
    in_flashinfer = model.attention.head_size in _FLASHINFER_HEADS and not mixed
    if (vllm >= (0, 24) or model.attention.latent) and dtype in FP8 and capability < _ADA and not in_flashinfer:
        yield option, "before Ada (compute capability 8.9) Triton has no FP8, and FlashInfer no heads of this size"
    if vllm >= (0, 33) and dtype in {"bfloat16", "float16"} - {model.dtype}:
        yield option, "it is another float type than the model's"


def skipped_layers(model: Model, deployment: Deployment) -> frozenset[int]:
    """Return the layers that TurboQuant skips: those without attention, in a dense model those at the boundary."""
    if deployment.kv_cache_dtype not in TURBOQUANT:
        return frozenset()
    count = len(model.layers)
    if model.hybrid:
        return frozenset(index for index, kind in enumerate(model.layers) if kind not in ATTENTIVE)
    edge = min(BOUNDARY, count // 2)
    return frozenset({*range(edge), *range(count - edge, count)})
