"""Known pitfalls of a deployment: quality, memory, releases, hybrid models, slow links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vpatch.plan import GIB
from vpatch.plan.defaults import in_second_runner, lengths
from vpatch.plan.deployment import DTYPE_BYTES, FP8, NEWEST, TURBOQUANT, changes_of, release_before
from vpatch.plan.fit import Fit
from vpatch.plan.memory import CONTEXT, COUNT_GRAPHS, counts_graphs

# What a desktop beside vLLM needs of the card, and the least that worked: shares of 0.905 and 0.926 on an RTX 5090.
_DESKTOP, _TIGHT = 3 * GIB, int(2.3 * GIB)


@dataclass(frozen=True)
class Caution:
    """A known pitfall, with a name for scripts and its source."""

    name: str
    because: str
    source: str = ""


def cautions(fit: Fit, *, slow_link: bool = False) -> tuple[Caution, ...]:
    """Return all cautions that apply to a deployment."""
    across = _parallel(fit) if slow_link else ()
    return (*_quality(fit), *_on_hybrids(fit), *_memory(fit), *_starting(fit), *across)


def _quality(fit: Fit) -> Iterator[Caution]:
    model, deployment = fit.model, fit.deployment
    if deployment.kv_cache_dtype in FP8 and model.delta:
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
            f"speculative decoding with a TurboQuant KV cache gives wrong tokens or crashes, up to vLLM {NEWEST} at"
            " least; apply the overlay turboquant-mtp, or add --enforce-eager --no-async-scheduling; with the overlay,"
            " attention to drafts runs outside of CUDA graphs, so that a step takes longer than with an FP8 KV cache;"
            f" from vLLM {changes_of('decode_in_graphs')[0]} on the opt-in overlay turboquant-decode puts it into them,"
            " for up to eight drafts",
            "vllm-project/vllm#40807, #40880, #53180, #53410",
        )


def _memory(fit: Fit) -> Iterator[Caution]:
    deployment, memory = fit.deployment, fit.memory
    outside = memory.total - memory.requested
    if deployment.desktop and outside < _DESKTOP and not memory.kv_cache.exact:
        share = (memory.total - _DESKTOP) / memory.total
        worse = "vLLM may not even start" if outside < _TIGHT else "watch it"
        yield Caution(
            "desktop",
            f"a desktop shares this card, and vLLM leaves it {outside / GIB:.1f} GiB: {worse}; at most"
            f" --gpu-memory-utilization {int(share * 1000) / 1000} leaves it {_DESKTOP / GIB:.0f} GiB",
            "ig1/Qwen3.5-35B-A3B-NVFP4, GPU Memory Utilization Guide",
        )
    taken = _DESKTOP if deployment.desktop else 0
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


def _starting(fit: Fit) -> Iterator[Caution]:
    model, deployment, release = fit.model, fit.deployment, fit.deployment.release
    if (named := release.vllm.base_version) != str(release.number):
        because = f"vLLM {named} was not released: this build is planned as {release.number}, the release before it"
        yield Caution("between-releases", because)
    if not fit.surely and fit.fits:
        yield Caution("tight", "it fits at what is likely, not at the worst that is estimated")
    if not counts_graphs(model, deployment) and not deployment.enforce_eager:
        second = in_second_runner(model, release)
        what = "vLLM's second model runner, where this model runs," if second else "this release"
        unless = "" if second else f", unless {COUNT_GRAPHS}=1 is set"
        yield Caution(
            "graphs-uncounted",
            f"{what} does not count CUDA graphs when it sizes the KV cache{unless}",
            "ig1/Qwen3.5-35B-A3B-NVFP4, Inference",
        )
    asked = lengths(model, release)[1] if deployment.longest else deployment.max_model_len
    if len(fit.layout.groups) > 1 and fit.longest < asked and not release.admits_all_groups:
        yield Caution(
            "admits-too-much",
            "this release starts, with `--max-model-len auto` too, though a request of full length does not fit: it"
            f" counts the blocks of one group of layers only; give --max-model-len {fit.longest} at most",
            "vLLM, `_max_memory_usage_bytes_from_groups`",
        )
    if fit.starves_prompts:
        block, each = fit.layout.block_size, 1 + deployment.speculative_tokens
        decodes = f"{each} tokens of each request that decodes" if each > 1 else "a token of each request that decodes"
        fewer = (deployment.max_num_batched_tokens - block) // each
        yield Caution(
            "starved-prompts",
            "without hybrid-align-progress, a long prompt gets no tokens while a step has no room for a block, which is"
            f" {block:,} tokens, beside {decodes}, and with it goes on by less than a block a step: give"
            f" --max-num-batched-tokens {fit.least_batch}" + (f", or --max-num-seqs {fewer}" if fewer else ""),
            "vLLM, `_mamba_block_aligned_split`",
        )
    if fit.block_exceeds_batch and not deployment.enable_prefix_caching:
        yield Caution(
            "block-size",
            f"a block is {fit.layout.block_size:,} tokens, more than --max-num-batched-tokens: with prefix caching,"
            " vLLM would refuse to start",
            "inferRouter/Qwen3.6-35B-A3B-NVFP4, Recommended vLLM serve config",
        )


def _parallel(fit: Fit) -> Iterator[Caution]:
    model = fit.model
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


def _on_hybrids(fit: Fit) -> Iterator[Caution]:
    """Yield the cautions on speculation with prefix caching, and on the estimate for CUDA graphs."""
    model, deployment, release = fit.model, fit.deployment, fit.deployment.release
    cached = deployment.enable_prefix_caching
    if model.hybrid and deployment.speculative_tokens and cached and release.overlong_hits:
        last = release_before(changes_of("overlong_hits")[-1])
        yield Caution(
            "hybrid-speculation",
            "speculative decoding with prefix caching on a hybrid model needs both hybrid-mtp-counts and"
            f" hybrid-mtp-prefix, up to vLLM {last}: they fix different causes of wrong tokens, and a test with one of"
            " them says nothing about the other",
            "vllm-project/vllm#53919, #47861",
        )
    estimated = counts_graphs(model, deployment) and not deployment.enforce_eager and not fit.memory.kv_cache.exact
    if model.hybrid and estimated and model.delta and release.counts_warm_up:
        first, after = changes_of("counts_warm_up")
        batch = "a smaller --max-num-batched-tokens"
        if cached and release.batch_holds_block:
            batch += f" (at least {fit.least_batch:,}, the tokens of a block and of decodes)"
        yield Caution(
            "cudagraph-estimate",
            f"on hybrid models, vLLM {first} to {release_before(after)} sets too much memory aside for CUDA graphs,"
            " which makes the KV cache 18 to 24 % smaller: give --kv-cache-memory-bytes, or set"
            f" {COUNT_GRAPHS}=0 and lower --gpu-memory-utilization by 0.02 to 0.03, or give {batch}",
            "vllm-project/vllm#50780, #45178, #50848",
        )
