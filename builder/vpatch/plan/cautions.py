"""What to know before a deployment is started: things that people paid for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vpatch.plan.arithmetic import FP8, arithmetic_of
from vpatch.plan.estimates import CONTEXT, COUNT_GRAPHS, counts_graphs
from vpatch.plan.fit import Fit
from vpatch.plan.kv_pages import DTYPE_BYTES, PRESETS
from vpatch.plan.model import GIB, Model

DESKTOP, TIGHT = 3 * GIB, int(2.3 * GIB)
"""What a desktop beside vLLM wants of the card, and with how little some got along: 0.905 and 0.926 of an RTX 5090."""


@dataclass(frozen=True)
class Caution:
    """Something to know: `name` is for scripts, `because` for people, `source` where it is from."""

    name: str
    because: str
    source: str = ""


def cautions(model: Model, fit: Fit, *, slow_link: bool = False) -> tuple[Caution, ...]:
    """Give all that apply to a deployment."""
    return (*_quality(model, fit), *_memory(model, fit), *_parallel(model, fit, slow_link=slow_link))


def _quality(model: Model, fit: Fit) -> Iterator[Caution]:
    """What changes answers."""
    deployment = fit.deployment
    if deployment.kv_cache_dtype in FP8 and model.hybrid:
        yield Caution(
            "fp8-kv-quality",
            "FP8 KV cache on Qwen3.5's hybrids: with --calculate-kv-scales answers decayed into gibberish, and static"
            " scales damaged a quantisation; compare answers before you rely on it",
            "ig1/Qwen3.5-35B-A3B-NVFP4, About FP8 KV cache",
        )
    if model.head and model.head.scheme.startswith("fp8"):
        yield Caution(
            "fp8-head-structured-output",
            "the output head is FP8: for JSON, tool calls, enums and long agent runs prefer one in BF16",
            "inferRouter/Qwen3.6-35B-A3B-NVFP4, Branch selection",
        )
    if deployment.speculative_tokens and deployment.kv_cache_dtype in PRESETS:
        yield Caution(
            "turboquant-speculation",
            "speculative decoding with a TurboQuant KV cache gives wrong tokens or crashes, up to vLLM 0.33.0 at least,"
            " unless you add --enforce-eager --no-async-scheduling; a patched 0.20 to 0.23, 0.25 or 0.26 refuses to"
            " start without them",
            "vllm-project/vllm#40807, #40880, #42808",
        )


def _memory(model: Model, fit: Fit) -> Iterator[Caution]:
    """What may run out."""
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
        on_top = (
            f"{', '.join(loose)} come on top of vLLM's share"
            if loose
            else "vLLM's share does not bound a KV cache of a given size"
        )
        option = "--kv-cache-memory-bytes" if memory.kv_cache.exact else "--gpu-memory-utilization"
        yield Caution(
            "uncounted",
            f"{on_top}: at worst {memory.left.least / GIB:.2f} GiB are left of the card, and a long prompt {sure} end"
            f" in out of memory; lower {option}",
            "vllm-project/vllm#40420",
        )
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
    if block_exceeds_batch(model, fit) and not deployment.enable_prefix_caching:
        yield Caution(
            "block-size",
            f"a block is {fit.layout.block_size:,} tokens, more than --max-num-batched-tokens: with prefix caching,"
            " vLLM would refuse to start",
            "inferRouter/Qwen3.6-35B-A3B-NVFP4, Recommended vLLM serve config",
        )


def block_exceeds_batch(model: Model, fit: Fit) -> bool:
    """Say whether vLLM would refuse to start with prefix caching: `VllmConfig.validate_block_size`, up to 0.26."""
    deployment = fit.deployment
    larger = fit.layout.block_size > deployment.max_num_batched_tokens
    return model.hybrid and larger and arithmetic_of(deployment.vllm).batch_holds_block


def _parallel(model: Model, fit: Fit, *, slow_link: bool) -> Iterator[Caution]:
    """What goes between GPUs."""
    deployment = fit.deployment
    if deployment.tensor_parallel_size < 2 or not slow_link:
        return
    hidden = model.hidden_size * DTYPE_BYTES[model.dtype]
    reduced = 2 * len(model.layers) // deployment.pipeline_parallel_size * hidden
    yield Caution(
        "slow-link",
        f"tensor parallelism sums {reduced / 1024:,.0f} KiB per token over all GPUs of a group, twice in each layer,"
        f" which a slow link (PCIe x4) does not bear; a pipeline hands on {hidden / 1024:,.0f} KiB per token and stage,"
        " which it does: keep a tensor-parallel group on NVLink or full lanes, and put the pipeline across the link",
        "4x RTX 3090 guide, The Recommended Strategy: TP=2 + PP=2",
    )
