"""A plan: the overlays that a deployment needs, the memory that it takes, what refuses it, and known pitfalls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from vpatch.core.overlay import Catalogued, Need, Overlay, Use
from vpatch.core.verdict import State
from vpatch.errors import Failure, Problem
from vpatch.plan import FULL, GIB, Model, Weights
from vpatch.plan.cautions import Caution, on_hybrids
from vpatch.plan.deployment import FP8, TURBOQUANT, Deployment, arithmetic_of, release_of
from vpatch.plan.fit import Advice, Fit, advise, fit, remedies
from vpatch.plan.kv_cache import DTYPE_BYTES, skipped_layers, stages_of
from vpatch.plan.memory import CONTEXT, COUNT_GRAPHS, counts_graphs

# What a desktop beside vLLM needs of the card, and the least that worked: shares of 0.905 and 0.926 on an RTX 5090.
DESKTOP, TIGHT = 3 * GIB, int(2.3 * GIB)
FLASHINFER_HEADS = (64, 128, 256)
ADA, UNKNOWN = (8, 9), (99, 0)  # compute capabilities; one that is not known breaks no rule
REFUSES = "vLLM refuses to start"


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
    """Plan a deployment with the installed overlays; raise `Failure` as `fit` does, and if no weights are known."""
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
    """Return whether the deployment needs each overlay, by the states that overlays declare for the release."""
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


def _declared(overlay: Overlay, vllm: Version) -> tuple[State | None, str]:
    for span, declared in overlay.releases.items():
        if SpecifierSet(span, prereleases=True).contains(vllm.base_version):
            word, _, why = declared.partition(":")
            return State(word.strip()), why.strip()
    return None, ""


def refusals(model: Model, weights: Weights, fit: Fit, requests: int) -> Iterator[Problem]:
    """Yield the problems that keep a deployment from starting, or from serving so many full-length requests at once."""
    deployment = fit.deployment
    for what in model.unknown:
        yield Problem("cannot know", model.name, what)
    if deployment.max_model_len > model.max_position_embeddings:
        cause = f"{deployment.max_model_len:,} tokens, of {model.max_position_embeddings:,} that the model was made for"
        yield Problem("too long for the model", model.name, cause)
    if deployment.speculative_tokens and not model.draft_layers and not model.unknown:
        cause = f"{model.architecture} has no layers of multi-token prediction"
        yield Problem(REFUSES, f"--speculative {deployment.speculative_tokens}", cause)
    for option, cause in (*_layout_refusals(model, deployment), *_dtype_refusals(model, deployment)):
        yield Problem(REFUSES, f"{option}, vLLM {deployment.vllm}", cause)
    if _block_exceeds_batch(model, fit) and deployment.enable_prefix_caching:
        block = f"with prefix caching a batch holds a block, which is {fit.layout.block_size:,} tokens"
        cause = f"{block}: at least that, or --no-enable-prefix-caching"
        yield Problem(REFUSES, f"--max-num-batched-tokens {deployment.max_num_batched_tokens}", cause)
    if not fit.share_is_free:
        cause = f"that share of the card is not free: a process takes {CONTEXT.size.least / GIB:.1f} GiB before it asks"
        yield Problem(REFUSES, f"--gpu-memory-utilization {deployment.gpu_memory_utilization:g}", cause)
    elif not fit.fits:
        yield _does_not_fit(model, weights, fit)
    elif fit.likely.concurrency < requests:
        cause = f"{fit.likely.concurrency:.2f} of {deployment.max_model_len:,} tokens at once"
        yield Problem("does not serve as many", f"--requests {requests}", cause)


def _layout_refusals(model: Model, deployment: Deployment) -> Iterator[tuple[str, str]]:
    # `tests/plan/test_agreement.py` draws cases of each rule, and of those below, for the releases' own code.
    vllm, stages = deployment.vllm.release, deployment.pipeline_parallel_size
    pipeline, capability = f"--pipeline-parallel-size {stages}", deployment.gpu.capability or UNKNOWN
    skips_some = len(skipped_layers(model, deployment)) < len(model.layers)
    mixed = not model.hybrid and deployment.kv_cache_dtype in TURBOQUANT and skips_some
    if vllm >= (0, 28) and mixed and stages > 1:
        cause = "TurboQuant on a dense model gives stages different block sizes"
        yield pipeline, f"{cause}: refused, or from 0.29 on many times as large"
    if vllm >= (0, 29) and mixed and capability[0] == 10 and model.attention.head_size in FLASHINFER_HEADS:
        cause = "on this GPU the layers that TurboQuant leaves alone run in FlashInfer"
        yield f"--kv-cache-dtype {deployment.kv_cache_dtype}", f"{cause}, which has no layout in common with it"
    if vllm < (0, 30) and stages > 1 and deployment.speculative_tokens:
        yield pipeline, "layers of multi-token prediction cannot be on a stage"
    parts = [model.layers[stage.start : stage.stop] for stage in stages_of(len(model.layers), stages)]
    if vllm >= (0, 20) and model.hybrid and any(FULL not in part for part in parts):
        cause = "a stage would have no attention layer"
        yield pipeline, f"{cause}: refused, or from 0.26 on laid out in a way that is not planned"


def _dtype_refusals(model: Model, deployment: Deployment) -> Iterator[tuple[str, str]]:
    vllm, dtype, capability = deployment.vllm.release, deployment.kv_cache_dtype, deployment.gpu.capability or UNKNOWN
    in_flashinfer = model.attention.head_size in FLASHINFER_HEADS
    if vllm >= (0, 24) and dtype in FP8 and capability < ADA and not in_flashinfer:
        cause = "before Ada (compute capability 8.9) Triton has no FP8, and FlashInfer no heads of this size"
        yield f"--kv-cache-dtype {dtype}", cause
    if vllm >= (0, 33) and dtype in {"bfloat16", "float16"} - {model.dtype}:
        yield f"--kv-cache-dtype {dtype}", "it is another float type than the model's"


def _does_not_fit(model: Model, weights: Weights, fit: Fit) -> Problem:
    deployment, memory, would = fit.deployment, fit.memory, "; ".join(remedies(model, weights, fit.deployment))
    fits = f"would fit: {would}" if would else "nothing that is known would fit"
    if fit.lacks_states:
        why = f"CUDA graphs want a block for each of {fit.states:,} requests, there are {fit.likely.blocks:,}"
        return Problem(REFUSES, f"--max-num-seqs {deployment.max_num_seqs}", f"{why}; {fits}")
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


def _block_exceeds_batch(model: Model, fit: Fit) -> bool:
    """Whether vLLM refuses prefix caching: `VllmConfig.validate_block_size`, up to 0.26."""
    deployment = fit.deployment
    larger = fit.layout.block_size > deployment.max_num_batched_tokens
    return model.hybrid and larger and arithmetic_of(deployment.vllm).batch_holds_block


def cautions(model: Model, fit: Fit, *, slow_link: bool = False) -> tuple[Caution, ...]:
    """Return all cautions that apply to a deployment."""
    across = _parallel(model, fit) if slow_link else ()
    return (*_quality(model, fit), *on_hybrids(model, fit), *_memory(fit), *_starting(model, fit), *across)


def _quality(model: Model, fit: Fit) -> Iterator[Caution]:
    deployment = fit.deployment
    if deployment.kv_cache_dtype in FP8 and model.hybrid:
        yield Caution(
            "fp8-kv-quality",
            "FP8 KV cache on Qwen3.5's hybrids: with --calculate-kv-scales answers decayed into gibberish, and static"
            " scales damaged a quantisation; compare answers before you rely on it",
            "ig1/Qwen3.5-35B-A3B-NVFP4, About FP8 KV cache",
        )
    if model.head and model.head.startswith("fp8"):
        yield Caution(
            "fp8-head-structured-output",
            "the output head is FP8: for JSON, tool calls, enums and long agent runs prefer one in BF16",
            "inferRouter/Qwen3.6-35B-A3B-NVFP4, Branch selection",
        )
    if deployment.speculative_tokens and deployment.kv_cache_dtype in TURBOQUANT:
        yield Caution(
            "turboquant-speculation",
            "speculative decoding with a TurboQuant KV cache gives wrong tokens or crashes, up to vLLM 0.33.0 at least;"
            " apply the overlay turboquant-mtp, or add --enforce-eager --no-async-scheduling; with the overlay,"
            " attention to drafts runs outside of CUDA graphs, so that a step takes longer than with an FP8 KV cache;"
            " from vLLM 0.21 on the opt-in overlay turboquant-decode puts it into them, for up to eight drafts",
            "vllm-project/vllm#40807, #40880, #53180, #53410",
        )


def _memory(fit: Fit) -> Iterator[Caution]:
    deployment, memory = fit.deployment, fit.memory
    outside = memory.total - memory.requested
    if deployment.desktop and outside < DESKTOP and not memory.kv_cache.exact:
        share = (memory.total - DESKTOP) / memory.total
        worse = "vLLM may not even start" if outside < TIGHT else "watch it"
        yield Caution(
            "desktop",
            f"a desktop shares this card, and vLLM leaves it {outside / GIB:.1f} GiB: {worse}; at most"
            f" --gpu-memory-utilization {int(share * 1000) / 1000} leaves it {DESKTOP / GIB:.0f} GiB",
            "ig1/Qwen3.5-35B-A3B-NVFP4, GPU Memory Utilization Guide",
        )
    taken = DESKTOP if deployment.desktop else 0
    loose = [item.name for item in memory.items if not item.counted and item is not CONTEXT]
    if (memory.kv_cache.exact or loose) and memory.left.least < taken:
        sure = "will" if memory.left.most < taken else "may"
        unbounded = "vLLM's share does not bound a KV cache of a given size"
        on_top = f"{', '.join(loose)} come on top of vLLM's share" if loose else unbounded
        option = "--kv-cache-memory-bytes" if memory.kv_cache.exact else "--gpu-memory-utilization"
        yield Caution(
            "uncounted",
            f"{on_top}: at worst {memory.left.least / GIB:.2f} GiB are left of the card, and a long prompt {sure} end"
            f" in out of memory; lower {option}",
            "vllm-project/vllm#40420",
        )


def _starting(model: Model, fit: Fit) -> Iterator[Caution]:
    deployment = fit.deployment
    named, taken = Version(deployment.vllm.base_version), release_of(deployment.vllm)
    if named != taken:
        because = f"vLLM {named} was not released: this build is planned as {taken}, the release before it"
        yield Caution("between-releases", because)
    if not fit.surely and fit.fits:
        yield Caution("tight", "it fits at what is likely, not at the worst that is estimated")
    if not counts_graphs(deployment) and not deployment.enforce_eager:
        yield Caution(
            "graphs-uncounted",
            f"this release does not count CUDA graphs when it sizes the KV cache, unless {COUNT_GRAPHS}=1 is set",
            "ig1/Qwen3.5-35B-A3B-NVFP4, Inference",
        )
    asked = model.max_position_embeddings if deployment.longest else deployment.max_model_len
    if model.hybrid and fit.longest < asked and not arithmetic_of(deployment.vllm).admits_all_groups:
        yield Caution(
            "admits-too-much",
            "this release starts, with `--max-model-len auto` too, though a request of full length does not fit: it"
            f" counts the blocks of one group of layers only; give --max-model-len {fit.longest} at most",
            "vLLM 0.18, `_max_memory_usage_bytes_from_groups`",
        )
    if _block_exceeds_batch(model, fit) and not deployment.enable_prefix_caching:
        yield Caution(
            "block-size",
            f"a block is {fit.layout.block_size:,} tokens, more than --max-num-batched-tokens: with prefix caching,"
            " vLLM would refuse to start",
            "inferRouter/Qwen3.6-35B-A3B-NVFP4, Recommended vLLM serve config",
        )


def _parallel(model: Model, fit: Fit) -> Iterator[Caution]:
    hidden = model.hidden_size * DTYPE_BYTES[model.dtype]
    reduced = 2 * len(model.layers) // fit.deployment.pipeline_parallel_size * hidden
    if fit.deployment.tensor_parallel_size > 1:
        yield Caution(
            "slow-link",
            f"tensor parallelism sums {reduced / 1024:,.0f} KiB per token over all GPUs of a group, twice in each"
            f" layer, which a slow link (PCIe x4) does not bear; a pipeline hands on {hidden / 1024:,.0f} KiB per token"
            " and stage, which it does: keep a tensor-parallel group on NVLink or full lanes, and put the pipeline"
            " across the link",
            "4x RTX 3090 guide, The Recommended Strategy: TP=2 + PP=2",
        )
