"""Scenarios to run on a GPU, as data: a probe is one process with one engine, on each of some trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from tests.validation.gpu.engines import (
    DECODE,
    EAGER,
    LARGE_CHUNKS,
    PATCHED,
    SMALL_CHUNKS,
    STOCK,
    TILES,
    TQ,
    TREES,
    TRITON_DELTA_NET,
    Probe,
)
from tests.validation.gpu.full_size import AGAIN, FULL_SIZE, GROUPS
from tests.validation.gpu.models import STRATEGIES
from tests.validation.gpu.running import RUNNING
from tests.validation.gpu.speculation import SPECULATION
from tests.validation.gpu.starting import STARTING


def quality(family: str) -> list[Probe]:
    """Return the probes of a prompt's log-probabilities: KV cache types, chunk sizes, trees."""
    tq, auto, tq128, auto128 = (f"{family} {kind}" for kind in ("tq", "auto", "tq 128", "auto 128"))
    other_kernel = {**EAGER, "attention_config": {"flash_attn_version": 2}}
    wide = f"{family} tq 8192"
    longest = (6144, 24000)
    return [
        Probe(auto, family, "auto", (("logprobs", longest),), EAGER, (STOCK, PATCHED), references=((STOCK, auto),)),
        Probe(f"{auto} 2", family, "auto", (("logprobs", longest),), other_kernel, (STOCK,),
              references=((STOCK, auto),)),
        Probe(tq, family, TQ, (("logprobs", longest),), EAGER,
              references=((STOCK, tq), (STOCK, auto), (PATCHED, tq))),
        Probe(auto128, family, "auto", (("logprobs", (3072,)),), SMALL_CHUNKS, (STOCK,)),
        Probe(tq128, family, TQ, (("logprobs", (3072,)),), SMALL_CHUNKS,
              references=((STOCK, tq128), (STOCK, auto128), (PATCHED, tq128))),
        Probe(wide, family, TQ, (("logprobs", longest[1:]),), {**EAGER, **LARGE_CHUNKS}, (PATCHED, TILES),
              references=((PATCHED, wide),)),
    ]  # fmt: skip


def heads(family: str, strategy: str) -> list[Probe]:
    """Return the probes of an FP8 head: quantized, dequantized as control and, by block, with shifted scales."""
    name, steps = f"{family} {strategy}", (("logprobs", (512,)),)
    model, control = name.replace(" ", "_"), ((STOCK, f"{name} bf16"),)
    block = strategy == "block"
    made = [
        Probe(f"{name} bf16", f"{model}_bf16", "auto", steps, trees=(STOCK,)),
        Probe(f"{name} fp8", f"{model}_fp8", "auto", steps, trees=(STOCK, PATCHED) if block else (PATCHED,),
              references=control),
    ]  # fmt: skip
    shifted = Probe(f"{name} shifted", f"{model}_shifted", "auto", steps, trees=(PATCHED,), references=control)
    return made + ([shifted] if block else [])


def sizing(name: str, kv: str, trees: tuple[str, ...], engine: Mapping[str, Any], then: tuple[int, ...]) -> Probe:
    """Return a probe of the device memory that a prompt of 131,000 tokens takes beyond its budget."""
    steps = (("watched", (64, 131000)), *((("prefill", then),) if then else ()))
    longest = {"max_model_len": 131072, **LARGE_CHUNKS, **engine}
    return Probe(name, "hyb16", kv, steps, longest, trees, budget_gib=12, alone=True)


def whole_prompts(longest: int) -> dict[str, Any]:
    """Return arguments with which a prompt is taken in one step, unless a cached prefix is continued."""
    return {"enable_chunked_prefill": False, "max_model_len": longest, "max_num_batched_tokens": longest}


def sized(
    name: str, model: str, kv: str, requests: int, batch: int, length: int, *, then: tuple[int, ...] = (64,),
    prefixes: bool = False, text: bool = False,
) -> Probe:  # fmt: skip
    """Return a probe of vLLM's memory account for a model of full size, started as by `vllm serve`.

    Args:
        name: its name.
        model: one of `FULL_SIZE`, or of `FAMILIES`.
        kv: the KV cache's type.
        requests: concurrent requests.
        batch: tokens in a batch.
        length: the longest request, in tokens.
        then: lengths of the prompts that it answers, in tokens.
        prefixes: cache prefixes.
        text: leave out the vision tower.
    """
    engine: dict[str, Any] = {
        "max_num_seqs": requests, "max_num_batched_tokens": batch, "max_model_len": length, "language_model_only": text,
        "enable_prefix_caching": prefixes, "gpu_memory_utilization": 0.92, "kv_cache_memory_bytes": None,
        "compilation_config": None, "skip_tokenizer_init": None,
    }  # fmt: skip
    return Probe(name, model, kv, (("account", ()), ("serve", then)), engine, (PATCHED,), alone=True,
                 least_s=240, limit_s=300)  # fmt: skip


def family(name: str) -> Iterator[Probe]:
    """Yield the probes of one of `FAMILIES`, which has no tokenizer and no vision tower."""
    probe = sized(name, name, "auto", 16, 8192, 32768, text=True)
    engine = {**probe.engine, "skip_tokenizer_init": True, "additional_config": TRITON_DELTA_NET}
    probe = replace(probe, engine=engine, least_s=60, limit_s=180)
    yield probe
    if name in AGAIN:
        yield replace(probe, name=f"{name} again")


def paced(name: str, shapes: Sequence[tuple[int, int]], *, requests: int, longest: int = 65536) -> list[Probe]:
    """Return the probes of decode's speed: stock, `turboquant-decode`, and stock with a bf16 KV cache.

    Args:
        name: of the probes.
        shapes: batches, each with its context in tokens.
        requests: the largest batch.
        longest: the most tokens that a request may have, by which kernels are launched.
    """
    tokens = max(longest + 1024, *(batch * (context + 1024) for batch, context in shapes))
    steps = (("decode speeds", tuple(number for shape in shapes for number in shape)),)
    engine = {"max_num_seqs": requests, **whole_prompts(longest)}  # stock 0.21 fails on a continued one
    return [
        Probe(f"{name} {kv}", "dense24", cache, steps, {**engine, "kv_cache_memory_bytes": tokens * size}, trees,
              takes_turns=True, limit_s=400)
        for kv, cache, size, trees in (("tq", TQ, TQ_BYTES, (STOCK, DECODE)), ("auto", "auto", BF16_BYTES, (STOCK,)))
    ]  # fmt: skip


def requantized(family: str) -> list[Probe]:
    """Return the probes of log-probabilities by decode kernels: prompts in chunks of 128 tokens are read by them.

    vLLM's kernel with another number of splits sums in another order, and so has the noise of rounding. Not every stock
    release serves hybrid models with TurboQuant; the default overlays leave its kernel as it is.
    """
    name, plain = f"{family} tq 128 long", STOCK if family == "dense" else PATCHED
    steps = (("logprobs", (64, 3072, 65000)),)
    other = (("splits", (8,)), *steps)
    return [
        Probe(name, family, TQ, steps, SMALL_CHUNKS, (plain, DECODE), references=((plain, name),), limit_s=300),
        Probe(f"{name} 8", family, TQ, other, SMALL_CHUNKS, (plain,), references=((plain, name),), limit_s=300),
        Probe(f"{family} auto 128 long", family, "auto", steps, SMALL_CHUNKS, (STOCK,), references=((plain, name),),
              limit_s=300),
    ]  # fmt: skip


BF16_BYTES, TQ_BYTES = 24 * 8 * 512, 20 * 8 * 144 + 4 * 8 * 512
"""Bytes of a token in the KV cache of `dense24`, whose TurboQuant leaves four layers as they are."""

MOE, DENSE = FULL_SIZE
WHOLE = ("plan", "plan-27b", "plan-delta", "plan-states", "plan-others")
FAST = (
    *("fast-decode", "fast-decode-small", "fast-decode-quality", "fast-upstream", "fast-alone", "fast-mixed"),
    *("fast-drafts", "fast-drafts-mtp", "draft-speed"),
)
BY_NAME = (*WHOLE, *FAST, *RUNNING, *STARTING, "soak", "soak-crowded")
"""Scenarios that need a GPU of 100 GiB, two GPUs, five minutes, or an overlay that is opt-in: they run by name only."""

SCENARIOS: Mapping[str, list[Probe]] = {
    "serves": [
        Probe("hybrid", "hyb8", TQ, (("serve", (64, 20000, 40000, 65000)),)),
        Probe("prefix", "dense24", TQ, (("serve", (20000, 20500)),),
              {**whole_prompts(32768), "enable_prefix_caching": True}),
    ],
    "quality": [*quality("dense"), *quality("hyb")],
    "heads": [probe for strategy in STRATEGIES for family in ("dense", "hyb") for probe in heads(family, strategy)],
    "upstream": [Probe("upstream", releases="==0.20.*")],
    "dense": [
        Probe("dense", "dense24", TQ, (("watched", (64, 4096, 40000, 65000)), ("prefill", (65000,))), LARGE_CHUNKS,
              budget_gib=16, alone=True),
    ],
    "sizing": [
        sizing("long auto", "auto", (STOCK,), {}, (65000,)),
        sizing("long tq", TQ, TREES, {}, (65000,)),
    ],
    "decode": [
        # Whole prompts, since stock 0.21 fails on a continued one
        Probe("decode", "dense24", TQ, (("decode", (1024, 16384)),), alone=True, releases=">=0.20,<0.22",
              engine={**whole_prompts(18432), "max_num_seqs": 32, "kv_cache_memory_bytes": 32 << 30}),
    ],
    "eager": [
        sizing("long auto eager", "auto", (STOCK,), EAGER, ()),
        sizing("long tq eager", TQ, (TILES,), EAGER, ()),
    ],
    # TurboQuant has the vision tower use FlashAttention 2, which not every build has for its head size.
    "plan": [
        sized("35b auto", MOE, "auto", 16, 2048, 32768),
        sized("35b tq", MOE, TQ, 64, 8192, 262144, prefixes=True, text=True, then=(64, 131000)),
        sized("35b fp8", MOE, "fp8", 64, 8192, 262144),
        sized("35b auto 256", MOE, "auto", 256, 2048, 32768),
        sized("35b auto text", MOE, "auto", 16, 2048, 32768, text=True),
        sized("35b auto 8192", MOE, "auto", 16, 8192, 262144, prefixes=True, text=True),
        sized("35b tq 256", MOE, TQ, 256, 8192, 32768, text=True),
    ],
    "plan-27b": [
        sized("27b auto 256", DENSE, "auto", 256, 2048, 32768),
        sized("27b tq", DENSE, TQ, 64, 8192, 262144, prefixes=True, text=True, then=(64, 131000)),
        sized("27b fp8", DENSE, "fp8", 64, 8192, 262144),
        sized("27b auto", DENSE, "auto", 16, 2048, 32768),
        sized("27b tq 256", DENSE, TQ, 256, 8192, 32768, text=True),
        sized("27b auto text", DENSE, "auto", 16, 2048, 32768, text=True),
    ],
    "plan-delta": [probe for name in GROUPS["delta"] for probe in family(name)],
    "plan-states": [probe for name in GROUPS["states"] for probe in family(name)],
    "plan-others": [probe for name in GROUPS["others"] for probe in family(name)],
    "fast-decode": [
        *paced("decoding", [*product((32, 8, 1), (16384, 4096)), (32, 1024), (1, 1024)], requests=32),
    ],
    "fast-decode-small": [
        *paced("decoding small", ((8, 4096), (1, 16384), (8, 1024), (1, 1024)), requests=8),
    ],
    "fast-alone": [
        Probe(f"alone {name}", "dense24", kv, (("alone", (16384, 7)),), whole_prompts(32768), (tree,), takes_turns=True,
              limit_s=300)
        for name, kv, tree in (("tq", TQ, DECODE), ("auto", "auto", STOCK))
    ],
    "fast-mixed": [
        Probe(f"mixed {name}", "dense24", kv, (("beside", (8, 16384, 32768, 3)),),
              {"max_num_seqs": 16, "kv_cache_memory_bytes": 200_000 * size}, trees, takes_turns=True, limit_s=300,
              releases=">=0.24")
        for name, kv, size, trees in (("tq", TQ, TQ_BYTES, (STOCK, DECODE)), ("auto", "auto", BF16_BYTES, (STOCK,)))
    ],
    "fast-decode-quality": [*requantized("dense"), *requantized("hyb")],
    "fast-upstream": [Probe("fast upstream", trees=(STOCK, DECODE))],
    **SPECULATION,
    **RUNNING,
    **STARTING,
}  # fmt: skip
"""By name, the most important first."""

WARM_UP = Probe("warm-up", "hyb8", "auto", (("serve", (64, 128, 2048, 8320, 10240, 24000)),), LARGE_CHUNKS, (STOCK,),
                limit_s=200)  # fmt: skip
"""Compiles and tunes the delta net's kernels for whole and continued prompts; every later hybrid probe reuses them."""
