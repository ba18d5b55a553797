"""Known pitfalls of a deployment: quality, memory, releases, hybrid models, slow links."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from vpatch.plan import GIB
from vpatch.plan.defaults import in_second_runner, lengths
from vpatch.plan.deployment import DTYPE_BYTES, FP8, NEWEST, TURBOQUANT, changes_of, release_before
from vpatch.plan.fit import TILES, Fit, assurances, fit
from vpatch.plan.memory import CONTEXT, COUNT_GRAPHS, counts_graphs

# What a desktop beside vLLM needs of the card, and the least that worked: shares of 0.905 and 0.926 on an RTX 5090.
_DESKTOP, _TIGHT = 3 * GIB, int(2.3 * GIB)
_MIB = 1 << 20
_SMALL = 2048  # tokens of a batch that vLLM takes by default on small cards
_GRAPHS = 0.03  # the share for CUDA graphs, where vLLM does not count them
ALIGNS = "hybrid-align-progress"


@dataclass(frozen=True)
class Caution:
    """A known pitfall, with a name for scripts, its source, and the overlays that together avoid it."""

    name: str
    because: str
    source: str = ""
    avoided_by: frozenset[str] = frozenset()


def cautions(found: Fit, overlays: Collection[str] = (), *, slow_link: bool = False) -> tuple[Caution, ...]:
    """Return the cautions that apply to a deployment with these overlays."""
    across = _parallel(found) if slow_link else ()
    known = (*_quality(found), *_on_hybrids(found), *_memory(found), *_starting(found), *across)
    return tuple(one for one in known if not one.avoided_by or not one.avoided_by <= {*overlays})


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
    eager = deployment.enforce_eager and "--no-async-scheduling" in deployment.extra
    if deployment.speculative_tokens and deployment.kv_cache_dtype in TURBOQUANT and not eager:
        yield Caution(
            "turboquant-speculation",
            f"speculative decoding with a TurboQuant KV cache gives wrong tokens or crashes, up to vLLM {NEWEST} at"
            " least; apply the overlay turboquant-mtp, or add --enforce-eager --no-async-scheduling; with the overlay,"
            " attention to drafts runs outside of CUDA graphs, so that a step takes longer than with an FP8 KV cache;"
            f" from vLLM {changes_of('decode_in_graphs')[0]} on the opt-in overlay turboquant-decode puts it into them,"
            " for up to eight drafts",
            "vllm-project/vllm#40807, #40880, #53180, #53410",
            frozenset({"turboquant-mtp"}),
        )


def _memory(fit: Fit) -> Iterator[Caution]:
    deployment, memory = fit.deployment, fit.memory
    outside = memory.total - memory.requested
    taken = _DESKTOP if deployment.desktop else 0
    loose = [item.name for item in memory.items if not item.counted and item is not CONTEXT]
    overflows = bool(memory.kv_cache.exact or loose) and memory.left.least < taken
    if deployment.desktop and outside < _DESKTOP and not memory.kv_cache.exact:
        share = (memory.total - _DESKTOP) / memory.total
        worse = "vLLM may not even start" if outside < _TIGHT else "watch it"
        room = f"at most --gpu-memory-utilization {int(share * 1000) / 1000} leaves it {_DESKTOP / GIB:.0f} GiB"
        yield Caution(
            "desktop",
            f"a desktop shares this card, and vLLM leaves it {outside / GIB:.1f} GiB: {worse}"
            + ("" if overflows else f"; {room}"),  # or the next caution has a smaller share, which leaves it as much
            "ig1/Qwen3.5-35B-A3B-NVFP4, GPU Memory Utilization Guide",
        )
    if overflows:
        sure = "will" if memory.left.most < 0 else "may"  # a desktop may take less than its room
        unbounded = "vLLM's share does not bound a KV cache of a given size"
        on_top = f"{' and '.join(loose)} come on top of vLLM's share" if loose else unbounded
        beside = f" beside {taken / GIB:.0f} GiB for the desktop" if taken else ""
        missing = f"at worst the card is {(taken - memory.left.least) / GIB:.2f} GiB too small{beside}"
        yield Caution(
            "uncounted",
            f"{on_top}: {missing}, and a long prompt {sure} end in out of memory; {_with_room(fit, taken)}",
            "vllm-project/vllm#40420",
        )


def _with_room(found: Fit, room: int) -> str:
    """Return the option that leaves `room` bytes of the card, even at the worst of the bounds."""
    deployment = found.deployment
    if deployment.kv_cache_dtype in TURBOQUANT and not deployment.tiles:
        tiled = fit(found.model, replace(deployment, tiles=True))
        if tiled.fits and tiled.memory.left.least >= room:
            return f"give --with {TILES}, or {_lower(found, room)}"
    return f"give {_lower(found, room)}"


def _lower(found: Fit, room: int) -> str:
    deployment, memory = found.deployment, found.memory
    missing = room - memory.left.least
    if memory.kv_cache.exact:
        size = (memory.kv_cache.likely - missing) // _MIB * _MIB
        shorter = "" if size >= found.needed else ", and a shorter context or fewer requests"
        return f"--kv-cache-memory-bytes {size} at most{shorter}" if size > 0 else "a shorter context or fewer requests"
    share = int((deployment.gpu_memory_utilization - missing / memory.total) * 100) / 100
    while share > 0.01:
        less = fit(found.model, replace(deployment, gpu_memory_utilization=share))
        if less.memory.left.least >= room:
            short = "" if less.fits else ", and a shorter context or fewer requests"
            return f"--gpu-memory-utilization {share:g} at most{short}"
        share = round(share - 0.01, 2)
    return "a shorter context or fewer requests"


def _starting(fit: Fit) -> Iterator[Caution]:
    model, deployment, release = fit.model, fit.deployment, fit.deployment.release
    if (named := release.vllm.base_version) != str(release.number):
        because = f"vLLM {named} was not released: this build is planned as {release.number}, the release before it"
        yield Caution("between-releases", because)
    if not fit.surely and fit.fits:
        surely = " or ".join(assurances(fit))
        would = f"; at the worst, too, it fits with {surely}" if surely else ""
        yield Caution("tight", f"it fits at what is likely, not at the worst that is estimated{would}")
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
            f"without {ALIGNS}, a long prompt gets no tokens while a step has no room for a block, which is"
            f" {block:,} tokens, beside {decodes}, and with it goes on by less than a block a step: give"
            f" --max-num-batched-tokens {fit.least_batch}" + (f", or --max-num-seqs {fewer}" if fewer else ""),
            "vLLM, `_mamba_block_aligned_split`",
            frozenset({ALIGNS}),
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
            frozenset({"hybrid-mtp-counts", "hybrid-mtp-prefix"}),
        )
    estimated = counts_graphs(model, deployment) and not deployment.enforce_eager and not fit.memory.kv_cache.exact
    if model.hybrid and estimated and model.delta and release.counts_warm_up:
        first, after = changes_of("counts_warm_up")
        yield Caution(
            "cudagraph-estimate",
            f"on hybrid models, vLLM {first} to {release_before(after)} sets too much memory aside for CUDA graphs,"
            f" which makes the KV cache 18 to 24 % smaller: {_without_estimate(fit)}",
            "vllm-project/vllm#50780, #45178, #50848",
        )


def _without_estimate(found: Fit) -> str:
    """Return what makes a hybrid model's KV cache larger, where a release estimates too much for CUDA graphs."""
    deployment = found.deployment
    share = round(deployment.gpu_memory_utilization - _GRAPHS, 3)
    off = f"{COUNT_GRAPHS}=0"
    uncounted = replace(deployment, environment=(*deployment.environment, off), gpu_memory_utilization=share)
    size = fit(found.model, uncounted).memory.kv_cache.least // _MIB * _MIB
    ways = [f"set {off} and give --gpu-memory-utilization {share:g}"]
    if size > found.memory.kv_cache.likely:
        ways.insert(0, f"give --kv-cache-memory-bytes {size}")
    least = found.least_batch if deployment.enable_prefix_caching else _SMALL
    if least < deployment.max_num_batched_tokens:
        ways.append(f"give a smaller --max-num-batched-tokens, down to {least}")
    return ", or ".join(ways)
