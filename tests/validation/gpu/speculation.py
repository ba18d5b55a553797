"""Scenarios of speculative decoding: accepted counts, cached prefixes, n-gram and MTP drafts, a soak, and its price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.validation.gpu.engines import CHUNK, DECODE, EAGER, PATCHED, STOCK, TILES, TQ, V1, WORKSPACE, Probe

DRAFTED = 3
SYNTHETIC = {
    "speculative_config": {
        "method": "mtp",
        "num_speculative_tokens": DRAFTED,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.8, 0.5, 0.2],
    }
}
"""MTP whose drafts are accepted at random: the target model would accept hardly any of a random MTP layer's."""
NGRAM = {
    "speculative_config": {
        "method": "ngram", "num_speculative_tokens": DRAFTED, "prompt_lookup_max": 4, "prompt_lookup_min": 2,
    },
}  # fmt: skip
SPARSE = {
    "speculative_config": {**SYNTHETIC["speculative_config"], **NGRAM["speculative_config"], "prompt_lookup_max": 2},
}  # fmt: skip
"""N-gram drafts of two tokens' continuation, accepted at random: what is rejected leaves the next step without any."""
FORGETS = ">=0.20.2,<0.32"
"""Releases on which a decode without drafts goes on from before the accepted ones."""
SMALL = {"kv_cache_memory_bytes": 3 << 30, "max_model_len": 16384, "gpu_memory_utilization": 0.1}
CACHED = {**SMALL, "enable_prefix_caching": True}
COMPILED = {"compilation_config": None}
"""vLLM's default: torch.compile, and CUDA graphs of whole and of partial steps."""
SYNCHRONOUS = {"async_scheduling": False}
FORKED = ">=0.20.2"
"""Releases with synthetic acceptance."""
TWO_RUNNERS = ">=0.29"
"""Releases that speculate by the V2 model runner unless they are told otherwise."""
RACING = ">=0.22"
"""Releases whose counts arrive at the host without blocking, so that only a wait makes an early arrival certain."""
UNEQUAL = ">=0.24"
"""Releases whose layers may have blocks of several sizes."""
BOTH = (STOCK, PATCHED)


def replaying(name: str, kv: str, of: tuple[tuple[str, str], ...], tree: str, **more: Any) -> Probe:
    """Return a probe that decodes others' answers again, without speculation."""
    engine = {**SMALL, **SYNCHRONOUS, "max_num_seqs": 32, **more}
    steps = (("engine", ()), ("replay", ()))
    return Probe(name, "hyb_mtp", kv, steps, engine, (tree,), releases=FORKED, of=of, limit_s=480)


def replayed(name: str, kv: str, of: tuple[tuple[str, str], ...], tree: str, **more: Any) -> list[Probe]:
    """Return a probe that decodes others' answers again, without speculation, and one that does so in smaller chunks.

    The difference between the two is the noise of chunks and batches.
    """
    half = {**more, "max_num_batched_tokens": more.get("max_num_batched_tokens", CHUNK) // 2}
    return [replaying(name, kv, of, tree, **more), replaying(f"{name} noise", kv, ((tree, name),), tree, **half)]


def drafting(name: str, kv: str, trees: tuple[str, ...], *steps: tuple[str, tuple[int, ...]], **engine: Any) -> Probe:
    """Return a probe of the tiny hybrid with MTP and synthetic acceptance."""
    releases = engine.pop("releases", FORKED)
    limit, environment = engine.pop("limit_s", 150), engine.pop("environment", {})
    return Probe(name, "hyb_mtp", kv, (("engine", ()), *steps), {**SYNTHETIC, **engine}, trees, releases=releases,
                 limit_s=limit, environment=environment)  # fmt: skip


def plainly(name: str, *steps: tuple[str, tuple[int, ...]], releases: str = FORKED, **more: Any) -> Probe:
    """Return a probe of the tiny hybrid without speculation."""
    return Probe(name, "hyb_mtp", "auto", (("engine", ()), *steps), SMALL, BOTH, releases=releases, **more)


def on_both_runners(name: str) -> tuple[tuple[str, str], ...]:
    """Return the trees with the probe of this name, and those with its twin on the V1 model runner."""
    return tuple((tree, probe) for probe in (name, f"{name} v1") for tree in BOTH)


def induced(name: str, trees: tuple[str, ...], **engine: Any) -> Probe:
    """Return a probe of the model that continues a repeated text."""
    releases = engine.pop("releases", ">=0.20")
    steps = (("engine", ()), ("repeat", (2000,)))
    return Probe(name, "induction", TQ, steps, {**SMALL, "max_model_len": 4096, **engine}, trees, releases=releases)


FAST = ">=0.21"
"""Releases on which `turboquant-decode` verifies drafts."""


def drafts_timed(drafts: int) -> Probe:
    """Return a probe of the speed of answers with so many n-gram drafts, by the slow and by the fast form."""
    speculation = {"speculative_config": {**NGRAM["speculative_config"], "num_speculative_tokens": drafts}}
    engine = {**SMALL, "max_model_len": 4096, "max_num_seqs": 8, **(speculation if drafts else {})}
    return Probe(f"{drafts} drafts", "induction", TQ, (("draft speed", (8, 3000, 512, 3)),), engine, (PATCHED, DECODE),
                 releases=FAST, takes_turns=True)  # fmt: skip


MTP = ("answer", (64, 300, 700, 1100, 1500, 1900))
SHORT = ("answer", (1 + DRAFTED,) * 12)
"""Prompts as long as a decode that verifies drafts, also beside such decodes."""
ONE = ("answer", (300, 700, *(1,) * 22))
"""New prompts of one token, whose states are in blocks of other requests."""
BUSY = {"max_num_seqs": 32, "max_num_batched_tokens": 4096, "kv_cache_memory_bytes": 8 << 30}
LEAVING_NONE_OUT = {"max_num_batched_tokens": 32 * 2304, "long_prefill_token_threshold": 2304}
"""Every request gets tokens in every step, and of a prompt at least one block of the tiny hybrid with TurboQuant."""
CROWDED = {"max_num_seqs": 160, "max_num_batched_tokens": 576, "kv_cache_memory_bytes": 16 << 30}
"""A step holds one block of the tiny hybrid, 544 tokens, or 144 decodes with their drafts: some are left out of it."""
WITH_GRAMMARS = {
    "skip_tokenizer_init": None,
    "speculative_config": {"method": "mtp", "num_speculative_tokens": DRAFTED},
}
"""Drafts that no random number accepts: those would ignore a grammar, too."""
TURNS = {"max_num_seqs": 16, "kv_cache_memory_bytes": 8 << 30, "max_num_batched_tokens": 8192, "max_model_len": 8192}
IN_ONE_STEP = {**TURNS, "max_num_batched_tokens": 16 * 4096}
"""All prompts of a turn start and end in one step, beside nothing else."""

SPECULATION: Mapping[str, list[Probe]] = {
    "counts": [
        drafting("counts", "auto", BOTH, ("counts", (600,)), **CACHED),
        drafting("counts early", "auto", BOTH, ("counts early", (600,)), **CACHED, releases=RACING),
    ],
    "prefix": [
        drafting("prefix mtp", "auto", BOTH, ("converse", (4,)), **CACHED),
        drafting("prefix mtp v1", "auto", BOTH, ("converse", (4,)), **CACHED, releases=TWO_RUNNERS, environment=V1),
        drafting("prefix uncached", "auto", (STOCK,), ("converse", (4,)), **SMALL),
        *replayed("prefix plain", "auto", (*((tree, name) for name in ("prefix mtp", "prefix mtp v1") for tree in BOTH),
                                           (STOCK, "prefix uncached")), STOCK),
    ],
    "progress": [
        drafting("progress", "auto", BOTH, ("progress", (6000, 200)), **CACHED),
        *replayed("progress plain", "auto", ((STOCK, "progress"), (PATCHED, "progress")), STOCK),
    ],
    "units": [
        drafting("units", "auto", BOTH, ("units", (4,)), **CACHED, releases=UNEQUAL),
        *replayed("units plain", "auto", ((STOCK, "units"), (PATCHED, "units")), STOCK),
    ],
    "ngram": [
        induced("ngram plain", (STOCK, PATCHED)),
        induced("ngram", (STOCK, PATCHED), **NGRAM),
        induced("ngram compiled", (PATCHED,), **NGRAM, **COMPILED),
        induced("ngram workspace plain", (WORKSPACE,), releases="==0.21.0"),
        induced("ngram workspace", (WORKSPACE,), **NGRAM, releases="==0.21.0"),
    ],
    "mtp": [
        drafting("mtp", TQ, BOTH, MTP, **SMALL),
        drafting("mtp v1", TQ, BOTH, MTP, **SMALL, releases=TWO_RUNNERS, environment=V1),
        drafting("mtp eager", TQ, BOTH, MTP, **SMALL, **EAGER),
        drafting("mtp synchronous", TQ, (PATCHED,), MTP, **SMALL, **EAGER, **SYNCHRONOUS),
        *replayed("mtp plain", TQ, (*((tree, name) for name in ("mtp", "mtp v1", "mtp eager") for tree in BOTH),
                                    (PATCHED, "mtp synchronous")), PATCHED),
    ],
    "mtp-compiled": [
        drafting("mtp compiled", TQ, (PATCHED,), MTP, **SMALL, **COMPILED, limit_s=480),
        replaying("mtp compiled plain", TQ, ((PATCHED, "mtp compiled"),), PATCHED, max_num_seqs=8, **COMPILED),
    ],
    "graphs": [
        drafting("graphs mtp", "auto", BOTH, SHORT, **SMALL),
        drafting("graphs mtp v1", "auto", BOTH, SHORT, **SMALL, releases=TWO_RUNNERS, environment=V1),
        drafting("graphs mtp eager", "auto", (STOCK,), SHORT, **SMALL, **EAGER, environment=V1),
        *replayed("graphs plain", "auto", (*on_both_runners("graphs mtp"), (STOCK, "graphs mtp eager")), STOCK),
    ],
    "one-token": [
        plainly("one token", ONE),
        plainly("one token v1", ONE, releases=TWO_RUNNERS, environment=V1),
        drafting("one token mtp", "auto", BOTH, ONE, **SMALL),
        drafting("one token mtp v1", "auto", BOTH, ONE, **SMALL, releases=TWO_RUNNERS, environment=V1),
        *replayed("one token plain", "auto", on_both_runners("one token") + on_both_runners("one token mtp"), PATCHED),
    ],
    "zero-drafts": [
        drafting("zero drafts", "auto", BOTH, ("sparse", (24, 300, 400, 500, 600, 600, 700, 700, 900)),
                 **SMALL | SPARSE, releases=FORGETS),
        *replayed("zero drafts plain", "auto", ((STOCK, "zero drafts"), (PATCHED, "zero drafts")), STOCK),
    ],
    "fast-drafts": [
        induced("fast ngram plain", (DECODE,), releases=FAST),
        induced("fast ngram", (DECODE,), **NGRAM, releases=FAST),
        induced("fast ngram compiled", (DECODE,), **NGRAM, **COMPILED, releases=FAST),
    ],
    "fast-drafts-mtp": [
        drafting("fast mtp", TQ, (DECODE,), MTP, **SMALL, releases=FAST),
        drafting("fast mtp eager", TQ, (DECODE,), MTP, **SMALL, **EAGER, releases=FAST),
        *replayed("fast mtp plain", TQ, ((DECODE, "fast mtp"), (DECODE, "fast mtp eager")), DECODE),
    ],
    "draft-speed": [drafts_timed(0), drafts_timed(2), drafts_timed(4), drafts_timed(8)],
    "soak": [
        drafting("soak", TQ, (TILES,), ("soak", (300, 32, 4000, 0)), **CACHED | BUSY | LEAVING_NONE_OUT, limit_s=420),
        drafting("soak synchronous", TQ, (TILES,), ("soak", (60, 32, 4000, 0)), **SMALL | BUSY | SYNCHRONOUS),
        *replayed("soak plain", TQ, tuple((TILES, name) for name in ("soak", "soak synchronous")), TILES, **BUSY),
    ],
    "soak-crowded": [
        drafting("soak crowded", "auto", (PATCHED,), ("soak", (60, 160, 500, 0)), **CACHED | CROWDED, limit_s=240),
        drafting("soak grammars", "auto", (PATCHED,), ("soak", (60, 160, 500, 30)),
                 **CACHED | CROWDED | WITH_GRAMMARS, limit_s=240),
        *replayed("crowded plain", "auto", tuple((PATCHED, f"soak {name}") for name in ("crowded", "grammars")), STOCK,
                  max_num_batched_tokens=8192, max_num_seqs=64, kv_cache_memory_bytes=8 << 30),
    ],
    "speed": [
        Probe("speed hybrid", "hyb16", "auto", (("turns", (16, 4096, 12)),), TURNS, BOTH, takes_turns=True),
        Probe("speed dense", "dense24", TQ, (("turns", (16, 4096, 12)),), TURNS, BOTH, releases=">=0.21",
              takes_turns=True),
    ],
    "new-prompts": [
        Probe("new prompts", "dense24", TQ, (("turns", (16, 4096, 12)),), IN_ONE_STEP, BOTH, releases=">=0.21",
              takes_turns=True),
    ],
}  # fmt: skip
"""By name."""
